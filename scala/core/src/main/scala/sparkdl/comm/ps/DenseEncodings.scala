package sparkdl.comm.ps

/**
 * Encodings with equally many bytes for each element, little-endian. They work on heap tiles that stay in the first-level
 * cache, because the JIT vectorises loops over arrays and not over mapped buffers.
 */
private[comm] abstract class DenseEncoding(override val name: String, val elementBytes: Int) extends BlockEncoding {
  import DenseEncoding._

  override def maxBytes(shape: BlockShape): Long = shape.count * elementBytes
  override def canHave(shape: BlockShape, bytes: Long): Boolean = bytes == maxBytes(shape)

  /** Reads `count` encoded elements at `offset` into `scratch.term`. */
  protected def load(memory: Segment, offset: Long, scratch: Scratch, count: Int): Unit

  override def decode(memory: Segment, block: ByteRange, shape: BlockShape, to: ElementRange => Long): Unit = {
    val scratch = ofThisThread.get
    tiles(shape.ranges, to) { (at, before, count) =>
      load(memory, block.offset + before * elementBytes, scratch, count)
      memory.putFloats(at, scratch.term, count)
    }
  }

  override def addInto(memory: Segment, blocks: Seq[ByteRange], shape: BlockShape, to: ElementRange => Long): Unit = {
    val scratch = ofThisThread.get
    tiles(shape.ranges, to) { (at, before, count) =>
      memory.getFloats(at, scratch.sum, count)
      blocks.foreach { block =>
        load(memory, block.offset + before * elementBytes, scratch, count)
        add(scratch.sum, scratch.term, count)
      }
      memory.putFloats(at, scratch.sum, count)
    }
  }

  private def add(sum: Array[Float], term: Array[Float], count: Int): Unit = {
    var i = 0
    while (i < count) {
      sum(i) += term(i)
      i += 1
    }
  }
}

private[comm] object DenseEncoding {

  /** Elements: three such arrays are half of a 32 KiB cache. */
  private[ps] val Tile = 2048

  final class Scratch {
    val sum = new Array[Float](Tile)
    val term = new Array[Float](Tile)
    val halves = new Array[Short](Tile)
  }

  private[ps] val ofThisThread: ThreadLocal[Scratch] = ThreadLocal.withInitial(() => new Scratch)

  /** Calls `body(byte offset of the tile's elements, elements of the block before it, count)`. */
  private[ps] def tiles(ranges: IndexedSeq[ElementRange], place: ElementRange => Long)(
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

/** The elements as they are. Short ranges are gathered, so that not each of them is a write to a socket of its own. */
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
    ByteRange(staging, shape.packedCount * 4) +: shape.direct.map(range => ByteRange(from(range), range.count * 4))

  override protected def load(memory: Segment, offset: Long, scratch: DenseEncoding.Scratch, count: Int): Unit =
    memory.getFloats(offset, scratch.term, count)
}

/** 16 bits for each element, all of which are staged. */
private[comm] abstract class HalfEncoding(name: String) extends DenseEncoding(name, 2) {
  def round(from: Array[Float], to: Array[Short], count: Int): Unit
  def widen(from: Array[Short], to: Array[Float], count: Int): Unit

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
      memory.getFloats(at, scratch.term, count)
      round(scratch.term, scratch.halves, count)
      memory.putShorts(staging + before * 2, scratch.halves, count)
    }
    IndexedSeq(ByteRange(staging, maxBytes(shape)))
  }

  override protected def load(memory: Segment, offset: Long, scratch: DenseEncoding.Scratch, count: Int): Unit = {
    memory.getShorts(offset, scratch.halves, count)
    widen(scratch.halves, scratch.term, count)
  }
}
