// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import java.nio.ByteBuffer
import java.nio.channels.ReadableByteChannel
import java.util.concurrent.atomic.AtomicLong

import sparkdl.comm.Clock
import sparkdl.comm.flow.BlockTarget
import sparkdl.comm.transport.DirectChunkTarget

/**
 * Target that writes a block to successive ranges of a segment.
 *
 * @param isValidLength returns true if a whole block may have so many bytes.
 * @param onArrival called, on the thread that writes, when bytes `from` until `until` of the block
 *    have arrived, after all bytes before them in their part
 */
private[ps] final class SegmentSink(
    segment: Segment,
    targets: IndexedSeq[ByteRange],
    isValidLength: Long => Boolean,
    clock: Clock,
    onArrival: (Long, Long) => Unit
) extends BlockTarget {
  private val starts: IndexedSeq[Long] = targets.scanLeft(0L)(_ + _.count)
  private val firstByte = new AtomicLong
  private val written = new AtomicLong

  /** Time when the first bytes arrived, by `clock`; 0 before. */
  def firstByteNanos: Long = firstByte.get

  /** Bytes that have arrived; all of the block's, once it is complete. */
  def received: Long = written.get

  /** Maximum bytes of the block: all that fit into the ranges. */
  val maxBytes: Long = starts.last

  /** Return true if a block may have so many bytes. */
  def expects(bytes: Long): Boolean = bytes <= maxBytes && isValidLength(bytes)

  override def part(offset: Long, length: Int): DirectChunkTarget = new Part(offset)

  /** Target for a whole block. */
  def wholeBlock: DirectChunkTarget = new Part(0)

  /** Target for consecutive bytes of the block from `at` on. One thread at a time uses it. */
  private final class Part(private var at: Long) extends DirectChunkTarget {
    private var target = 0

    override def write(from: ByteBuffer): Unit = segment.access {
      val end = from.limit()
      while (from.position() < end) {
        val place = next(math.min(SegmentSink.PieceBytes, end - from.position()))
        from.limit(from.position() + place.count.toInt)
        begin()
        segment.put(place.offset, from)
        from.limit(end)
        recordArrival(place.count)
      }
    }

    override def read(from: ReadableByteChannel, maxCount: Int): Int = segment.access {
      val place = next(maxCount)
      val count = from.read(segment.slices(place.offset, place.count).head)
      if (count > 0) recordArrival(count.toLong)
      count
    }

    /** Return where the next bytes go, at most `maxCount`. */
    private def next(maxCount: Int): ByteRange = {
      while (at >= starts(target + 1)) target += 1
      val within = at - starts(target)
      ByteRange(
        targets(target).offset + within,
        math.min(maxCount.toLong, targets(target).count - within)
      )
    }

    private def begin(): Unit = firstByte.compareAndSet(0, clock.nanoTime)

    private def recordArrival(count: Long): Unit = {
      begin()
      written.addAndGet(count)
      at += count
      onArrival(at - count, at)
    }
  }
}

private object SegmentSink {

  /** Bytes after which `onArrival` is called. They are still in the cache then. */
  private val PieceBytes = 64 << 10
}
