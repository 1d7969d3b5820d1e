package sparkdl.comm.ps

import java.nio.ByteBuffer

import sparkdl.comm.Clock
import sparkdl.comm.transport.BlockSink

/** Writes a block to successive ranges of a segment, given as (byte offset, bytes). */
final class SegmentSink(segment: Segment, targets: IndexedSeq[(Long, Long)], clock: Clock) extends BlockSink {
  private var target = 0
  private var filled = 0L

  /** When the first bytes came, by `clock`; 0 before. */
  @volatile private var begun = 0L
  def firstByteNanos: Long = begun

  override val bytes: Long = targets.map(_._2).sum

  override def restart(): Unit = {
    target = 0
    filled = 0
    begun = 0
  }

  override def write(from: ByteBuffer): Unit = segment.access {
    if (begun == 0) begun = clock.nanoTime
    val end = from.limit()
    while (from.position() < end) {
      val (offset, length) = targets(target)
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
