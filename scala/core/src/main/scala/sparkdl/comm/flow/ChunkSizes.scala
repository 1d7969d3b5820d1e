// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.flow

/**
 * Sizes of chunks. A chunk is small enough that an urgent block soon gets its turn, and large
 * enough to repay its fixed cost. That cost is tens of microseconds on both sides, and hundreds in
 * a JVM that has not compiled its code yet.
 */
private[flow] object ChunkSizes {

  /** Smallest chunk in bytes. The last chunk of a block may be smaller. */
  val LeastBytes: Int = 16 << 10
  private val MostBytes = 256 << 10

  /**
   * Bytes up to which a chunk may hold what the link carries in [[UsualNanos]]. A peer that is far
   * slower than the link takes long for that many.
   */
  private val UsualBytes = 64 << 10
  private val UsualNanos = 2e6

  /**
   * A chunk may be larger, up to [[MostBytes]], if the link carries it in this many nanoseconds.
   */
  private val ShortNanos = 5e5

  /**
   * A chunk may be this fraction of its block, up to [[UsualBytes]], at any measured rate. Others
   * wait for the block anyway. A new executor is slow itself and measures too low a rate, and
   * smaller chunks would slow it further.
   */
  private val BlockDivisor = 16

  /**
   * Nanoseconds that a chunk sized by its block may take the peer. A longer one would fill the
   * window alone.
   */
  private val MostPeerNanos = 5e7

  /**
   * Return the bytes of a block's next chunk.
   *
   * @param rate of the link, in bytes per nanosecond; 0 if unknown
   * @param peerRate rate of the block's peer, in bytes per nanosecond; 0 if unknown
   * @param block bytes of the whole block
   */
  def chunkBytes(rate: Double, peerRate: Double, block: Long): Int = {
    val byRate =
      if (rate == 0) 2.0 * LeastBytes
      else math.max(
        math.min(UsualBytes.toDouble, rate * UsualNanos),
        math.min(MostBytes.toDouble, rate * ShortNanos)
      )
    val byPeer = if (peerRate == 0) UsualBytes.toDouble
    else math.min(UsualBytes.toDouble, peerRate * MostPeerNanos)
    val bytes = math.max(byRate, math.min(byPeer, block.toDouble / BlockDivisor))
    math.max(LeastBytes, bytes.toInt / LeastBytes * LeastBytes)
  }

  /**
   * Bytes per peer that the common window admits at any measured rate. In all-to-all traffic,
   * several senders often meet at one receiver while other receivers are idle. Some bytes in flight
   * to every peer prevent that.
   */
  val PerPeerBytes: Long = 11 << 10
}
