package sparkdl.comm.flow

/**
 * How many bytes a chunk has: an eighth of the window, so that what is urgent gets its turn soon, but enough to repay a request.
 *
 * @param least of a chunk. Others have a multiple of it
 * @param repaysNanos the link's time that repays a request
 * @param largest that is no more than enough: what follows the window is not larger
 * @param perPeer chunks that have room in the common window for each peer, whatever the window follows
 */
private[flow] final case class ChunkSizes(least: Long, repaysNanos: Double, largest: Long, perPeer: Double) {
  import ChunkSizes._

  /** @param rate bytes in a nanosecond; 0 if it is not known */
  def chunk(window: Long, rate: Double): Int =
    math.max(smallest(rate), math.min(largest, multiple(window / 8))).toInt

  /** A request of that many repays itself. */
  def smallest(rate: Double): Long =
    if (rate == 0) 4 * least else math.max(least, math.min(MostOfSmallest, multiple((rate * repaysNanos).toLong)))

  private def multiple(bytes: Long): Long = bytes / least * least
}

private[flow] object ChunkSizes {

  /** A request costs tens of microseconds on both sides. */
  val Fetched: ChunkSizes = ChunkSizes(least = 16 << 10, repaysNanos = 2e6, largest = 256 << 10, perPeer = 1)

  /**
   * What is sent is not asked for first, so it costs less. All send to all, and where several meet, others have nothing to do:
   * with little in flight for each peer this happens often.
   */
  val Sent: ChunkSizes = ChunkSizes(least = 8 << 10, repaysNanos = 5e5, largest = 0, perPeer = 1.2)

  /** Half a millisecond at 1 Gbit/s repays a request on any link. */
  private val MostOfSmallest: Long = 64 << 10
}
