package sparkdl.comm.ps

import java.nio.{ByteBuffer, ByteOrder}

/** A sparse encoding for tests: how many elements are not zero, then the number in the block and the value of each. */
object NonZeros extends BlockEncoding {
  override def name: String = "nonzeros"
  override def inPlace: Boolean = false
  override def maxBytes(shape: BlockShape): Long = if (shape.count == 0) 0 else 4 + shape.count * 8
  override def stagingBytes(shape: BlockShape): Long = maxBytes(shape)
  override def canHave(shape: BlockShape, bytes: Long): Boolean =
    bytes >= 4 && bytes % 8 == 4 && bytes <= maxBytes(shape)

  override def encode(
      memory: Segment,
      from: ElementRange => Long,
      shape: BlockShape,
      staging: Long
  ): IndexedSeq[ByteRange] = {
    val found = for ((value, number) <- read(memory, from, shape).zipWithIndex if value != 0) yield (number, value)
    val block = ByteBuffer.allocate(4 + found.length * 8).order(ByteOrder.LITTLE_ENDIAN).putInt(found.length)
    found.foreach { case (number, value) => block.putInt(number).putFloat(value) }
    memory.put(staging, block.flip())
    IndexedSeq(ByteRange(staging, block.limit().toLong))
  }

  override def decode(memory: Segment, block: ByteRange, shape: BlockShape, to: ElementRange => Long): Unit =
    write(memory, dense(memory, block, shape), shape, to)

  override def addInto(memory: Segment, blocks: Seq[ByteRange], shape: BlockShape, to: ElementRange => Long): Unit = {
    val sum = read(memory, to, shape)
    blocks.map(dense(memory, _, shape)).foreach(values => values.indices.foreach(i => sum(i) += values(i)))
    write(memory, sum, shape, to)
  }

  private def dense(memory: Segment, block: ByteRange, shape: BlockShape): Array[Float] = {
    val values = new Array[Float](shape.count.toInt)
    val bytes = ByteBuffer.allocate(block.count.toInt).order(ByteOrder.LITTLE_ENDIAN)
    memory.slices(block.offset, block.count).foreach(bytes.put)
    bytes.flip()
    (0 until bytes.getInt()).foreach { _ =>
      val number = bytes.getInt()
      values(number) = bytes.getFloat()
    }
    values
  }

  private def read(memory: Segment, from: ElementRange => Long, shape: BlockShape): Array[Float] =
    shape.ranges.toArray.flatMap { range =>
      val values = new Array[Float](range.count.toInt)
      memory.getFloats(from(range), values, values.length)
      values
    }

  private def write(memory: Segment, values: Array[Float], shape: BlockShape, to: ElementRange => Long): Unit =
    shape.ranges.foldLeft(0) { (begin, range) =>
      memory.putFloats(to(range), values.slice(begin, begin + range.count.toInt), range.count.toInt)
      begin + range.count.toInt
    }
}
