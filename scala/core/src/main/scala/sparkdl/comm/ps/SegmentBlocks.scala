package sparkdl.comm.ps

import java.nio.ByteBuffer

/**
 * Makes blocks of what lies in one rank's segment, and takes in those that came. Any number of threads may use it at once, for
 * different slices.
 */
private[ps] final class SegmentBlocks(segment: Segment, map: SegmentMap) {
  private def parametersEncoding = map.encodings.parameters
  private def gradientsEncoding = map.encodings.gradients

  /** Places of elements in the flat vector that begins at `vector`. */
  private def in(vector: Long)(range: ElementRange): Long = vector + range.start * 4

  /**
   * The block of a slice of this rank's shard, of the exact values. What its readers will have of them is placed in the
   * parameters of `version`.
   */
  def ofParameters(slice: ShardSlice, version: Long): Array[ByteBuffer] = segment.access {
    val computed = in(map.parameters(version)) _
    def encode(from: ElementRange => Long) =
      parametersEncoding.encode(segment, from, slice.shape, map.shardStaging(slice))
    if (parametersEncoding.inPlace) {
      if (map.ahead)
        slice.shape.ranges.foreach(range => segment.copy(map.master(range), computed(range), range.count * 4))
      views(encode(computed))
    } else {
      val block = encode(map.master)
      parametersEncoding.decode(segment, block.head.offset, slice.shape.ranges, computed)
      views(block)
    }
  }

  /** The block of this rank's gradients for a slice of another one's shard. */
  def ofGradients(slice: ShardSlice): Array[ByteBuffer] = segment.access {
    views(gradientsEncoding.encode(segment, in(map.gradients), slice.shape, map.gradientStaging(slice)))
  }

  /** The block of `bytes` bytes that [[ofParameters]] made of the same. */
  def parametersLieAt(slice: ShardSlice, version: Long, bytes: Long): Array[ByteBuffer] =
    views(parametersEncoding.placeOf(in(map.parameters(version)), slice.shape, map.shardStaging(slice), bytes))

  /** The block of `bytes` bytes that [[ofGradients]] made of the same. */
  def gradientsLieAt(slice: ShardSlice, bytes: Long): Array[ByteBuffer] =
    views(gradientsEncoding.placeOf(in(map.gradients), slice.shape, map.gradientStaging(slice), bytes))

  /** Where the block of a slice of another rank's shard arrives. */
  def parametersArriveAt(slice: ShardSlice, version: Long): IndexedSeq[ByteRange] =
    if (parametersEncoding.inPlace)
      slice.shape.ranges.map(range => ByteRange(in(map.parameters(version))(range), range.count * 4))
    else IndexedSeq(ByteRange(map.pullbox(slice), parametersEncoding.maxBytes(slice.shape)))

  /** Where `worker`'s block of gradients for a slice of this rank's shard arrives. */
  def gradientsArriveAt(worker: Int, slice: ShardSlice): IndexedSeq[ByteRange] =
    IndexedSeq(ByteRange(map.inbox(worker, slice), gradientsEncoding.maxBytes(slice.shape)))

  /**
   * Puts what is there of another rank's shard where the model computes with it: of the block of a slice, the elements that
   * have come with its bytes `from` until `until`.
   */
  def placeParameters(slice: ShardSlice, version: Long, from: Long, until: Long): Unit =
    if (!parametersEncoding.inPlace) segment.access {
      val element = parametersEncoding.elementBytes
      val (first, end) = (from / element, until / element)
      val encoded = map.pullbox(slice) + first * element
      parametersEncoding.decode(segment, encoded, slice.shape.part(first, end), in(map.parameters(version)))
    }

  /**
   * Adds the gradients of all ranks for a slice of this rank's shard, in place of its own. They are added in the order of the
   * ranks, never in that of arrival: the same seed gives the same bits.
   *
   * @param arrived rank, and bytes of its block; in the order of the ranks
   */
  def reduce(slice: ShardSlice, arrived: Seq[(Int, Long)]): Unit = segment.access {
    val (lower, higher) = arrived.partition(_._1 < map.rank)
    def blocks(of: Seq[(Int, Long)]) = of.map { case (worker, bytes) => ByteRange(map.inbox(worker, slice), bytes) }
    gradientsEncoding.addInto(segment, blocks(lower), blocks(higher), slice.shape, in(map.gradients))
  }

  private def views(block: IndexedSeq[ByteRange]): Array[ByteBuffer] =
    block.flatMap(range => segment.slices(range.offset, range.count)).toArray
}
