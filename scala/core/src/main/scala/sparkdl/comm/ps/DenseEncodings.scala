// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import java.nio.{ByteBuffer, ByteOrder}

/**
 * Encoding with the same number of bytes for each element, little-endian. It works on tiles in heap
 * arrays that fit the first-level cache, because the JIT vectorizes loops over arrays but not over
 * mapped buffers.
 */
private[comm] abstract class DenseEncoding(override val name: String, val elementBytes: Int)
    extends BlockEncoding {
  import DenseEncoding._

  /**
   * True if a block consists of the elements themselves. It is then served from their place and
   * arrives in their place. Otherwise owner and readers compute with the decoded values, and the
   * optimizer updates separate master weights ([[SegmentMap.master]]).
   */
  def inPlace: Boolean

  override def maxBytes(shape: BlockShape): Long = shape.count * elementBytes
  override def expectedBytes(elements: Long, density: Double): Long = elements * elementBytes
  override def isValidLength(shape: BlockShape, bytes: Long): Boolean = bytes == maxBytes(shape)

  /** Read `count` encoded elements at `offset` into `scratch.term`. */
  protected def load(memory: Segment, offset: Long, scratch: Scratch, count: Int): Unit

  /** Decode the elements of these ranges, in this order, from `encoded`, and write them to `to`. */
  def decode(
      memory: Segment,
      encoded: Long,
      ranges: Seq[ElementRange],
      to: ElementRange => Long
  ): Unit = {
    val scratch = ofThisThread.get
    tiles(ranges, to) { (at, before, count) =>
      load(memory, encoded + before * elementBytes, scratch, count)
      memory.putFloats(at, scratch.term, count)
    }
  }

  override def addInto(
      memory: Segment,
      before: Seq[ByteRange],
      after: Seq[ByteRange],
      shape: BlockShape,
      to: ElementRange => Long
  ): Unit = {
    val scratch = ofThisThread.get
    tiles(shape.ranges, to) { (at, first, count) =>
      def add(block: ByteRange): Unit = {
        load(memory, block.offset + first * elementBytes, scratch, count)
        DenseEncoding.add(scratch.sum, scratch.term, count)
      }
      beginSum(scratch.sum, count)
      before.foreach(add)
      memory.getFloats(at, scratch.term, count)
      DenseEncoding.add(scratch.sum, scratch.term, count)
      after.foreach(add)
      memory.putFloats(at, scratch.sum, count)
    }
  }
}

private[comm] object DenseEncoding {

  /** Elements per tile. A [[Scratch]] of this size fits a first-level cache of 32 KiB. */
  private[ps] val Tile = 1024

  final class Scratch {
    val sum, term = new Array[Float](Tile)
    val bits, magnitudes, offsets = new Array[Int](Tile)
    val halves = new Array[Short](Tile)

    private val bytes = ByteBuffer.allocate(Tile * 4).order(ByteOrder.nativeOrder)
    private val ints = bytes.asIntBuffer
    private val floats = bytes.asFloatBuffer

    /** Convert as `Float.floatToRawIntBits` does. Java 17 does not vectorize loops over that. */
    def bitsOf(from: Array[Float], to: Array[Int], count: Int): Unit = {
      floats.put(0, from, 0, count)
      ints.get(0, to, 0, count)
    }

    /** Convert as `Float.intBitsToFloat` does. Java 17 does not vectorize loops over that. */
    def floatsOf(from: Array[Int], to: Array[Float], count: Int): Unit = {
      ints.put(0, from, 0, count)
      floats.get(0, to, 0, count)
    }
  }

  private[ps] val ofThisThread: ThreadLocal[Scratch] = ThreadLocal.withInitial(() => new Scratch)

  /** Begin a sum: adding to -0.0 keeps the bits of the first term. */
  private[ps] def beginSum(sum: Array[Float], count: Int): Unit =
    java.util.Arrays.fill(sum, 0, count, -0.0f)

  private[ps] def add(sum: Array[Float], term: Array[Float], count: Int): Unit = {
    var i = 0
    while (i < count) {
      sum(i) += term(i)
      i += 1
    }
  }

  /**
   * Call `body(byte offset of the tile's elements, elements of `ranges` before it, count)` for each
   * tile.
   */
  private[ps] def tiles(ranges: Seq[ElementRange], place: ElementRange => Long)(
      body: (Long, Long, Int) => Unit
  ): Unit = {
    var before = 0L
    ranges.foreach { range =>
      val begin = place(range)
      var done = 0L
      while (done < range.count) {
        val count = math.min(range.count - done, Tile).toInt
        body(begin + done * 4, before + done, count)
        done += count
      }
      before += range.count
    }
  }
}

/**
 * Encoding of the elements themselves. Short ranges are gathered, so that they do not take one
 * socket write each.
 */
private[comm] object Fp32 extends DenseEncoding("fp32", 4) {
  override def inPlace: Boolean = true
  override def stagingBytes(shape: BlockShape): Long = shape.packedCount * 4

  override def encode(
      memory: Segment,
      from: ElementRange => Long,
      shape: BlockShape,
      staging: Long
  ): IndexedSeq[ByteRange] = {
    var at = staging
    shape.packed.foreach { range =>
      memory.copy(from(range), at, range.count * 4)
      at += range.count * 4
    }
    placeOf(from, shape, staging, maxBytes(shape))
  }

  override def placeOf(
      from: ElementRange => Long,
      shape: BlockShape,
      staging: Long,
      bytes: Long
  ): IndexedSeq[ByteRange] =
    ByteRange(staging, shape.packedCount * 4) +: shape.direct.map(range =>
      ByteRange(from(range), range.count * 4)
    )

  override protected def load(
      memory: Segment,
      offset: Long,
      scratch: DenseEncoding.Scratch,
      count: Int
  ): Unit =
    memory.getFloats(offset, scratch.term, count)
}

/** Encoding with 16 bits for each element. Every block is staged. */
private[comm] abstract class HalfEncoding(name: String) extends DenseEncoding(name, 2) {

  /** Round the float32 numbers `bits` to `halves`. */
  protected def round(scratch: DenseEncoding.Scratch, count: Int): Unit

  /** Widen `halves` to `term`. */
  protected def widen(scratch: DenseEncoding.Scratch, count: Int): Unit

  override def inPlace: Boolean = false
  override def stagingBytes(shape: BlockShape): Long = maxBytes(shape)

  override def encode(
      memory: Segment,
      from: ElementRange => Long,
      shape: BlockShape,
      staging: Long
  ): IndexedSeq[ByteRange] = {
    val scratch = DenseEncoding.ofThisThread.get
    DenseEncoding.tiles(shape.ranges, from) { (at, before, count) =>
      memory.getInts(at, scratch.bits, count)
      round(scratch, count)
      memory.putShorts(staging + before * 2, scratch.halves, count)
    }
    IndexedSeq(ByteRange(staging, maxBytes(shape)))
  }

  override protected def load(
      memory: Segment,
      offset: Long,
      scratch: DenseEncoding.Scratch,
      count: Int
  ): Unit = {
    memory.getShorts(offset, scratch.halves, count)
    widen(scratch, count)
  }
}
