package sparkdl.comm.flow

/**
 * How many bytes are sent at a time: so few that what is urgent gets its turn soon, but enough to repay what each chunk costs on
 * both sides, which are tens of microseconds.
 */
private[flow] object ChunkSizes {
  private val Least: Long = 16 << 10

  /** Two milliseconds of the link repay it. */
  private val RepaysNanos = 2e6
  private val Most: Long = 64 << 10

  /** @param rate bytes in a nanosecond; 0 if it is not known */
  def chunk(rate: Double): Int =
    if (rate == 0) (2 * Least).toInt
    else math.max(Least, math.min(Most, (rate * RepaysNanos).toLong / Least * Least)).toInt

  /**
   * Bytes that have room in the common window for each peer, whatever the window follows. All send to all, and where several
   * meet, others have nothing to do: with little in flight for each peer this happens often.
   */
  val PerPeer: Long = 11 << 10
}
