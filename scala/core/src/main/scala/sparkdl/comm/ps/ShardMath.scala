package sparkdl.comm.ps

/**
 * The arithmetic on a segment: summing gradients and converting between float32 and the wire. It goes through heap tiles
 * that stay in the first-level cache, because the JIT vectorises loops over arrays and not over mapped buffers. Any number
 * of threads may use it at once, on different slices.
 */
final class ShardMath(segment: Segment, map: SegmentMap) {
  import ShardMath._

  /**
   * Adds all peers' gradients for a slice of this rank's shard to its own, in place. The order of the additions depends on
   * the ranks alone, never on who came first: the same seed gives the same bits.
   */
  def reduce(slice: ShardSlice): Unit = segment.access {
    val slots = map.peersInOrder.map(map.inbox(_, slice))
    val scratch = ofThisThread.get
    tiles(slice.shape.ranges) { (element, arrived, count) =>
      val own = map.gradients + element * 4
      segment.getFloats(own, scratch.sum, count)
      slots.foreach { slot =>
        load(slot + arrived * map.wire.bytes, scratch, count)
        add(scratch.sum, scratch.term, count)
      }
      segment.putFloats(own, scratch.sum, count)
    }
  }

  /** Gathers what a block serves from staging: the short ranges in float32, everything in a 16-bit format. */
  def stage(source: Long, shape: BlockShape, staging: Long): Unit = segment.access {
    map.wire match {
      case WireFormat.Fp32 =>
        var to = staging
        shape.packed.foreach { range =>
          segment.copy(source + range.start * 4, to, range.count * 4)
          to += range.count * 4
        }
      case half: WireFormat.Half =>
        val scratch = ofThisThread.get
        tiles(shape.ranges) { (element, arrived, count) =>
          segment.getFloats(source + element * 4, scratch.term, count)
          half.encode(scratch.term, scratch.halves, count)
          segment.putShorts(staging + arrived * 2, scratch.halves, count)
        }
    }
  }

  /** Copies a slice of the shard's master values to `parameters`. */
  def placeMaster(slice: ShardSlice, parameters: Long): Unit = segment.access {
    slice.shape.ranges.foreach(range => segment.copy(map.master(range), parameters + range.start * 4, range.count * 4))
  }

  /** Rounds a slice of the shard's master values into its staging, and writes the rounded values to `parameters`. */
  def stageMaster(half: WireFormat.Half, slice: ShardSlice, parameters: Long): Unit = segment.access {
    val scratch = ofThisThread.get
    var staging = map.shardStaging(slice)
    slice.shape.ranges.foreach { range =>
      val master = map.master(range)
      tiles(IndexedSeq(range)) { (element, done, count) =>
        segment.getFloats(master + done * 4, scratch.term, count)
        half.encode(scratch.term, scratch.halves, count)
        segment.putShorts(staging + done * 2, scratch.halves, count)
        half.decode(scratch.halves, scratch.term, count)
        segment.putFloats(parameters + element * 4, scratch.term, count)
      }
      staging += range.count * 2
    }
  }

  /** Writes a 16-bit block that was received at `from` to `parameters`. */
  def unpack(half: WireFormat.Half, from: Long, shape: BlockShape, parameters: Long): Unit = segment.access {
    val scratch = ofThisThread.get
    tiles(shape.ranges) { (element, arrived, count) =>
      segment.getShorts(from + arrived * 2, scratch.halves, count)
      half.decode(scratch.halves, scratch.term, count)
      segment.putFloats(parameters + element * 4, scratch.term, count)
    }
  }

  private def load(offset: Long, scratch: Scratch, count: Int): Unit = map.wire match {
    case WireFormat.Fp32 => segment.getFloats(offset, scratch.term, count)
    case half: WireFormat.Half =>
      segment.getShorts(offset, scratch.halves, count)
      half.decode(scratch.halves, scratch.term, count)
  }

  private def add(sum: Array[Float], term: Array[Float], count: Int): Unit = {
    var i = 0
    while (i < count) {
      sum(i) += term(i)
      i += 1
    }
  }

  /** Calls `body(first element of the tile, elements of the block before it, count)`. */
  private def tiles(ranges: IndexedSeq[ElementRange])(body: (Long, Long, Int) => Unit): Unit = {
    var before = 0L
    ranges.foreach { range =>
      var done = 0L
      while (done < range.count) {
        val count = math.min(range.count - done, Tile).toInt
        body(range.start + done, before + done, count)
        done += count
      }
      before += range.count
    }
  }
}

object ShardMath {

  /** Elements: three such arrays are half of a 32 KiB cache. */
  private val Tile = 2048

  private final class Scratch {
    val sum = new Array[Float](Tile)
    val term = new Array[Float](Tile)
    val halves = new Array[Short](Tile)
  }

  private val ofThisThread: ThreadLocal[Scratch] = ThreadLocal.withInitial(() => new Scratch)
}
