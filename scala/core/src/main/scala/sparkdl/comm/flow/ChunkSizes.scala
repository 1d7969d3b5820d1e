package sparkdl.comm.flow

/**
 * How many bytes are sent at a time: so few that what is urgent gets its turn soon, but enough to repay what each chunk costs on
 * both sides, which are tens of microseconds, and hundreds in a JVM that has compiled nothing yet.
 */
private[flow] object ChunkSizes {

  /** But of a block that has less. */
  val Least: Int = 16 << 10
  private val Most = 256 << 10

  /** What two milliseconds of the link carry repays it, up to so much; for a peer that is far slower than the link it is long. */
  private val Usual = 64 << 10
  private val UsualNanos = 2e6

  /** More is sent at a time where that takes no longer. */
  private val ShortNanos = 5e5

  /**
   * And up to [[Usual]] what is next to nothing beside its block, which others have to wait for anyway. Executors that are slow
   * themselves, as new ones are, take it for the link's fault, and would be slower with smaller ones.
   */
  private val OfBlock = 16

  /** But no more than the peer takes in so long: it would have the window to itself. */
  private val OfPeerNanos = 5e7

  /**
   * @param rate bytes in a nanosecond; 0 if it is not known
   * @param ofPeer likewise, of those that the block's peer takes
   * @param block bytes of all of it
   */
  def chunk(rate: Double, ofPeer: Double, block: Long): Int = {
    val byRate =
      if (rate == 0) 2.0 * Least
      else math.max(math.min(Usual.toDouble, rate * UsualNanos), math.min(Most.toDouble, rate * ShortNanos))
    val byPeer = if (ofPeer == 0) Usual.toDouble else math.min(Usual.toDouble, ofPeer * OfPeerNanos)
    val bytes = math.max(byRate, math.min(byPeer, block.toDouble / OfBlock))
    math.max(Least, bytes.toInt / Least * Least)
  }

  /**
   * Bytes that have room in the common window for each peer, whatever the window follows. All send to all, and where several
   * meet, others have nothing to do: with little in flight for each peer this happens often.
   */
  val PerPeer: Long = 11 << 10
}
