// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import java.nio.{ByteBuffer, ByteOrder}

import sparkdl.comm.CommException

/**
 * Encoding of the elements that are not zero, for mostly zero gradients. Little-endian:
 *
 *   number of entries, 4 bytes | number of runs, 4 bytes | first element and length of each run, 4
 *   bytes each | number of entries in each stretch of 65,536 elements, 4 bytes each | values,
 *   float32 | positions in their stretch, 2 bytes each
 *
 * A run consists of -0.0, which says that nobody used these parameters here: see `space/flat.py`.
 * All other elements are 0.0. If the dense elements take less, the block is -1 followed by them. So
 * a block is never more than four bytes longer than those.
 */
private[comm] object SparseEncoding extends BlockEncoding {
  import DenseEncoding.tiles

  private val DenseMarker = -1
  private val StretchElements = 1 << 16
  private val EntryBytes = 6L

  override def name: String = "sparse"
  override def maxBytes(shape: BlockShape): Long = if (shape.count == 0) 0 else 4 + shape.count * 4
  override def stagingBytes(shape: BlockShape): Long = maxBytes(shape)

  override def expectedBytes(elements: Long, density: Double): Long =
    1 + math.rint(elements * math.min(EntryBytes * density, 4)).toLong

  override def isValidLength(shape: BlockShape, bytes: Long): Boolean =
    bytes == maxBytes(shape) || (bytes >= 8 + 4 * stretches(shape) && bytes <= maxBytes(shape))

  override def encode(
      memory: Segment,
      from: ElementRange => Long,
      shape: BlockShape,
      staging: Long
  ): IndexedSeq[ByteRange] = {
    val found = new EntryCounter(shape, memory, from)
    if (shape.count == 0) IndexedSeq(ByteRange(staging, 0))
    else if (!found.isShorter) encodeDense(memory, from, shape, staging)
    else {
      val head = ByteBuffer.allocate(found.headBytes.toInt).order(ByteOrder.LITTLE_ENDIAN)
      head.putInt(found.entries.toInt).putInt(found.runs.length / 2)
      found.runs.foreach(head.putInt)
      found.counts.foreach(head.putInt)
      memory.put(staging, head.flip())
      writeEntries(memory, from, shape, staging + found.headBytes, found.entries)
      IndexedSeq(ByteRange(staging, found.bytes))
    }
  }

  override def addInto(
      memory: Segment,
      before: Seq[ByteRange],
      after: Seq[ByteRange],
      shape: BlockShape,
      to: ElementRange => Long
  ): Unit =
    if (shape.count > 0) {
      val Seq(lower, higher) = Seq(before, after).map(_.map(new EntryReader(memory, _, shape)))
      val sum, own = new Array[Float](DenseEncoding.Tile)
      tiles(shape.ranges, to) { (at, first, count) =>
        DenseEncoding.beginSum(sum, count)
        lower.foreach(_.addTo(sum, first, count))
        memory.getFloats(at, own, count)
        DenseEncoding.add(sum, own, count)
        higher.foreach(_.addTo(sum, first, count))
        memory.putFloats(at, sum, count)
      }
      (lower ++ higher).foreach(_.end())
    }

  private def stretches(shape: BlockShape): Long =
    (shape.count + StretchElements - 1) / StretchElements

  private def isNegativeZero(value: Float): Boolean =
    value == 0f && java.lang.Float.floatToRawIntBits(value) != 0

  private def encodeDense(
      memory: Segment,
      from: ElementRange => Long,
      shape: BlockShape,
      staging: Long
  ) = {
    memory.put(
      staging,
      ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN).putInt(DenseMarker).flip()
    )
    var at = staging + 4
    shape.ranges.foreach { range =>
      memory.copy(from(range), at, range.count * 4)
      at += range.count * 4
    }
    IndexedSeq(ByteRange(staging, maxBytes(shape)))
  }

  private def writeEntries(
      memory: Segment,
      from: ElementRange => Long,
      shape: BlockShape,
      place: Long,
      entries: Long
  ): Unit = {
    val elements, values = new Array[Float](DenseEncoding.Tile)
    val positions = new Array[Short](DenseEncoding.Tile)
    var written = 0L
    tiles(shape.ranges, from) { (at, before, count) =>
      memory.getFloats(at, elements, count)
      var found, i = 0
      while (i < count) {
        if (elements(i) != 0f) {
          values(found) = elements(i)
          positions(found) = (before + i).toShort // the lowest 16 bits
          found += 1
        }
        i += 1
      }
      memory.putFloats(place + written * 4, values, found)
      memory.putShorts(place + entries * 4 + written * 2, positions, found)
      written += found
    }
  }

  /**
   * Count of what a sparse block of these elements would have. It stops when the dense block is
   * shorter.
   */
  private final class EntryCounter(shape: BlockShape, memory: Segment, from: ElementRange => Long) {
    private val found = Array.newBuilder[Int]
    private var runNumber = 0L
    private var runBegin, runEnd = -1L
    var entries = 0L

    /** Entries in each stretch. */
    val counts = new Array[Int](stretches(shape).toInt)

    private val elements = new Array[Float](DenseEncoding.Tile)
    tiles(shape.ranges, from) { (at, before, count) =>
      if (isShorter) {
        memory.getFloats(at, elements, count)
        var i = 0
        while (i < count) {
          if (elements(i) != 0f) {
            counts(((before + i) / StretchElements).toInt) += 1
            entries += 1
          } else if (isNegativeZero(elements(i))) add(before + i)
          i += 1
        }
      }
    }
    endRun()

    /** First element and length of each run, alternating. */
    val runs: Array[Int] = found.result()

    def headBytes: Long = 8 + 8 * runNumber + 4 * counts.length
    def bytes: Long = headBytes + EntryBytes * entries
    def isShorter: Boolean = bytes < maxBytes(shape) && shape.count <= Int.MaxValue

    private def add(element: Long): Unit =
      if (element == runEnd) runEnd += 1
      else {
        endRun()
        runNumber += 1
        runBegin = element
        runEnd = element + 1
      }

    private def endRun(): Unit =
      if (runEnd > runBegin) found += runBegin.toInt += (runEnd - runBegin).toInt
  }

  /** Reader of a block, from its beginning to its end. */
  private final class EntryReader(memory: Segment, block: ByteRange, shape: BlockShape) {
    private val isDense = ints(0, 1)(0) == DenseMarker
    private val Array(entries, runNumber) = if (isDense) Array(0, 0) else ints(0, 2)
    private val headBytes = 8 + 8L * runNumber + 4 * stretches(shape)
    check(
      if (isDense) block.count == maxBytes(shape)
      else entries >= 0 && runNumber >= 0 && block.count == headBytes + EntryBytes * entries
    )
    private val runs = ints(8, 2 * runNumber)
    private val counts =
      if (isDense) Array.empty[Int] else ints(8 + 8L * runNumber, stretches(shape).toInt)
    check(counts.forall(_ >= 0) && counts.map(_.toLong).sum == entries)
    (0 until runNumber).foldLeft(0L) { (end, run) =>
      check(runs(2 * run) >= end && runs(2 * run + 1) >= 1)
      runs(2 * run).toLong + runs(2 * run + 1)
    }
    check(runs.isEmpty || runs(runs.length - 2).toLong + runs.last <= shape.count)

    private val values = new Array[Float](DenseEncoding.Tile)
    private val positions = new Array[Short](DenseEncoding.Tile)
    private var next, stretch, ofStretch, run = 0

    /** Position of the next entry; after the last one, more than there are elements. */
    private var position = 0L
    if (!isDense) findNext()

    /** Add `count` elements of the block, from number `before` on, to `sum`. */
    def addTo(sum: Array[Float], before: Long, count: Int): Unit =
      if (isDense) {
        memory.getFloats(block.offset + 4 + before * 4, values, count)
        DenseEncoding.add(sum, values, count)
      } else {
        addZeros(sum, before, count)
        while (position < before + count) {
          check(position >= before)
          sum((position - before).toInt) += values(next % values.length)
          next += 1
          findNext()
        }
      }

    def end(): Unit = check(isDense || next == entries)

    private def findNext(): Unit =
      if (next == entries) position = Long.MaxValue
      else {
        if (next % values.length == 0) {
          val count = math.min(entries - next, values.length)
          memory.getFloats(block.offset + headBytes + next * 4L, values, count)
          memory.getShorts(block.offset + headBytes + entries * 4L + next * 2L, positions, count)
        }
        while (ofStretch == counts(stretch)) {
          stretch += 1
          ofStretch = 0
        }
        ofStretch += 1
        position = stretch.toLong * StretchElements + (positions(next % values.length) & 0xffff)
      }

    /**
     * Add 0.0 to all elements outside of runs: a -0.0 must become 0.0 if any rank used the
     * parameter.
     */
    private def addZeros(sum: Array[Float], before: Long, count: Int): Unit = {
      var i = 0
      while (i < count) {
        while (run < runNumber && runs(2 * run).toLong + runs(2 * run + 1) <= before + i) run += 1
        val begin =
          if (run < runNumber) math.max(i, math.min(count, runs(2 * run) - before)).toInt else count
        while (i < begin) {
          sum(i) += 0f
          i += 1
        }
        if (i < count) i = math.min(count, runs(2 * run).toLong + runs(2 * run + 1) - before).toInt
      }
    }

    private def ints(offset: Long, count: Int): Array[Int] = {
      check(offset + 4L * count <= block.count)
      val bytes = ByteBuffer.allocate(4 * count).order(ByteOrder.LITTLE_ENDIAN)
      memory.slices(block.offset + offset, 4L * count).foreach(bytes.put)
      bytes.flip()
      Array.fill(count)(bytes.getInt())
    }

    private def check(holds: Boolean): Unit =
      if (!holds) throw new CommException(
        CommException.Protocol,
        s"${block.count} bytes are not a valid sparse block of ${shape.count} elements"
      )
  }
}
