package sparkdl.comm.ps

import java.nio.ByteBuffer

import sparkdl.comm.Clock
import sparkdl.comm.transport.BlockSink

/**
 * Writes a block to successive ranges of a segment.
 *
 * @param canHave whether a whole block may have so many bytes
 */
private[ps] final class SegmentSink(
    segment: Segment,
    targets: IndexedSeq[ByteRange],
    canHave: Long => Boolean,
    clock: Clock
) extends BlockSink {
  private var target = 0
  private var filled = 0L
  @volatile private var begun = 0L
  @volatile private var written = 0L

  /** When the first bytes came, by `clock`; 0 before. */
  def firstByteNanos: Long = begun

  /** Bytes that came; all of the block's, once it is here. */
  def received: Long = written

  override val maxBytes: Long = targets.map(_.count).sum
  override def expects(bytes: Long): Boolean = canHave(bytes)

  override def restart(): Unit = {
    target = 0
    filled = 0
    begun = 0
    written = 0
  }

  override def write(from: ByteBuffer): Unit = segment.access {
    if (begun == 0) begun = clock.nanoTime
    written += from.remaining
    val end = from.limit()
    while (from.position() < end) {
      val ByteRange(offset, length) = targets(target)
      val count = math.min(end - from.position(), length - filled).toInt
      from.limit(from.position() + count)
      segment.put(offset + filled, from)
      from.limit(end)
      filled += count
      if (filled == length) {
        target += 1
        filled = 0
      }
    }
  }
}
