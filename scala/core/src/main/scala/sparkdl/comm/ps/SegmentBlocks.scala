// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import java.nio.ByteBuffer

/**
 * Blocks of one rank's segment: makes the outgoing ones and takes the incoming ones. Any number of
 * threads may use it at once, for different slices.
 */
private[ps] final class SegmentBlocks(segment: Segment, map: SegmentMap) {
  private def parametersEncoding = map.encodings.parameters
  private def gradientsEncoding = map.encodings.gradients

  /** Return the place of a range of the flat vector that begins at `vector`. */
  private def placeIn(vector: Long)(range: ElementRange): Long = vector + range.start * 4

  /**
   * Make the block of a slice of this rank's shard from the master weights. Put the values that the
   * block's readers will decode into this rank's parameters of `version`.
   */
  def encodeParameters(slice: ShardSlice, version: Long): Array[ByteBuffer] = segment.access {
    val computed = placeIn(map.parameters(version)) _
    def encode(from: ElementRange => Long) =
      parametersEncoding.encode(segment, from, slice.shape, map.shardStaging(slice))
    if (parametersEncoding.inPlace) {
      if (map.pullsAhead)
        slice.shape.ranges.foreach(range =>
          segment.copy(map.master(range), computed(range), range.count * 4)
        )
      views(encode(computed))
    } else {
      val block = encode(map.master)
      parametersEncoding.decode(segment, block.head.offset, slice.shape.ranges, computed)
      views(block)
    }
  }

  /** Make the block of this rank's gradients for a slice of another rank's shard. */
  def encodeGradients(slice: ShardSlice): Array[ByteBuffer] = segment.access {
    views(gradientsEncoding.encode(
      segment,
      placeIn(map.gradients),
      slice.shape,
      map.gradientStaging(slice)
    ))
  }

  /** Return the block of `bytes` bytes that [[encodeParameters]] made of this slice. */
  def findParameters(slice: ShardSlice, version: Long, bytes: Long): Array[ByteBuffer] =
    views(parametersEncoding.placeOf(
      placeIn(map.parameters(version)),
      slice.shape,
      map.shardStaging(slice),
      bytes
    ))

  /** Return the block of `bytes` bytes that [[encodeGradients]] made of this slice. */
  def findGradients(slice: ShardSlice, bytes: Long): Array[ByteBuffer] =
    views(gradientsEncoding.placeOf(
      placeIn(map.gradients),
      slice.shape,
      map.gradientStaging(slice),
      bytes
    ))

  /** Return where the block of a slice of another rank's shard arrives. */
  def parametersTarget(slice: ShardSlice, version: Long): IndexedSeq[ByteRange] =
    if (parametersEncoding.inPlace)
      slice.shape.ranges.map(range =>
        ByteRange(placeIn(map.parameters(version))(range), range.count * 4)
      )
    else IndexedSeq(ByteRange(map.pullbox(slice), parametersEncoding.maxBytes(slice.shape)))

  /** Return where `worker`'s block of gradients for a slice of this rank's shard arrives. */
  def gradientsTarget(worker: Int, slice: ShardSlice): IndexedSeq[ByteRange] =
    IndexedSeq(ByteRange(map.inbox(worker, slice), gradientsEncoding.maxBytes(slice.shape)))

  /**
   * Put parameters of another rank's shard where the model computes with them. They are the
   * elements that arrived with bytes `from` until `until` of the slice's block.
   */
  def placeParameters(slice: ShardSlice, version: Long, from: Long, until: Long): Unit =
    if (!parametersEncoding.inPlace) segment.access {
      val element = parametersEncoding.elementBytes
      val (first, end) = (from / element, until / element)
      val encoded = map.pullbox(slice) + first * element
      parametersEncoding.decode(
        segment,
        encoded,
        slice.shape.part(first, end),
        placeIn(map.parameters(version))
      )
    }

  /**
   * Add the gradients of all ranks for a slice of this rank's shard, and put the sum in place of
   * its own gradients. They are added in the order of the ranks, never of arrival, so that a seed
   * always gives the same bits.
   *
   * @param arrived each rank and the bytes of its block, in the order of the ranks
   */
  def reduce(slice: ShardSlice, arrived: Seq[(Int, Long)]): Unit = segment.access {
    val (lower, higher) = arrived.partition(_._1 < map.rank)
    def blocks(of: Seq[(Int, Long)]) = of.map { case (worker, bytes) =>
      ByteRange(map.inbox(worker, slice), bytes)
    }
    gradientsEncoding.addInto(
      segment,
      blocks(lower),
      blocks(higher),
      slice.shape,
      placeIn(map.gradients)
    )
  }

  private def views(block: IndexedSeq[ByteRange]): Array[ByteBuffer] =
    block.flatMap(range => segment.slices(range.offset, range.count)).toArray
}
