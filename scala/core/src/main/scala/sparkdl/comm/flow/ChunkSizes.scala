package sparkdl.comm.flow

/**
 * How many bytes are sent at a time: so few that what is urgent gets its turn soon, but enough to repay what each chunk costs on
 * both sides, which are tens of microseconds, and hundreds in a JVM that has compiled nothing yet.
 */
private[flow] object ChunkSizes {
  private val Least = 16 << 10
  private val Most = 256 << 10

  /** What two milliseconds of the link carry repays it, up to so much; for a peer that is far slower than the link it is long. */
  private val Usual = 64 << 10
  private val UsualNanos = 2e6

  /** More is sent at a time where that takes no longer. */
  private val ShortNanos = 5e5

  /** @param rate bytes in a nanosecond; 0 if it is not known */
  def chunk(rate: Double): Int =
    if (rate == 0) 2 * Least
    else {
      val bytes = math.max(math.min(Usual.toDouble, rate * UsualNanos), math.min(Most.toDouble, rate * ShortNanos))
      math.max(Least, bytes.toInt / Least * Least)
    }

  /**
   * Bytes that have room in the common window for each peer, whatever the window follows. All send to all, and where several
   * meet, others have nothing to do: with little in flight for each peer this happens often.
   */
  val PerPeer: Long = 11 << 10
}
