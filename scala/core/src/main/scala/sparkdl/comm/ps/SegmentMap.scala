// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import java.nio.ByteOrder

import sparkdl.comm.CommException
import sparkdl.comm.ibatch.{Batch, Traffic}

/**
 * Part of one server in consecutive layers, sent as one block.
 *
 * @param firstLayer counted from 0
 */
private[comm] final case class ShardSlice(server: Int, firstLayer: Int, shape: BlockShape) {
  def isEmpty: Boolean = shape.count == 0
}

/**
 * Byte offsets of everything in one rank's segment.
 *
 * The optimizer updates the master weights: the float32 values of the shard that this rank serves.
 * If a block of parameters consists of the elements themselves, the master weights are this rank's
 * stripe of the parameters that the model computes with. In another encoding, every rank, the owner
 * too, must compute with the same decoded values. The master weights are then separate, in
 * `master`. They are also separate if parameters are pulled ahead, because the optimizer writes
 * them while backward still computes with the parameters before.
 *
 *   parameters, in two buffers for even and odd versions if they are pulled ahead | gradients |
 *   inbox: one slot per peer, its gradients for this shard | pullbox: one slot per peer, its
 *   encoded parameters | staging of the shard's block | staging of the gradient blocks per peer |
 *   master | summed: the count of added-up buckets, for the worker | owner: job and rank
 *
 * Each area from inbox to staging has room for one block per layer, one after the other. A block of
 * several layers needs no more room than these. So it begins where the block of its first layer
 * would, for all cuts into buckets. `master` has the elements of the shard in the order of the
 * layers.
 *
 * @param pullsAhead parameters of the next version arrive while the model computes with this one
 */
private[comm] final class SegmentMap(
    val layout: ShardLayout,
    val rank: Int,
    val encodings: Encodings,
    val pullsAhead: Boolean = false
) {
  import SegmentMap.LineBytes

  private var used = 0L
  private def reserve(bytes: Long): Long = {
    val at = used
    used = (used + bytes + LineBytes - 1) / LineBytes * LineBytes
    at
  }

  /** Room for blocks of `server`'s shard. */
  private final class Room(server: Int, blockBytes: BlockShape => Long) {
    private val before =
      layout.layers.indices.scanLeft(0L)((sum, layer) =>
        sum + blockBytes(layout.block(server, layer, layer))
      )
    private val begin = reserve(before.last)
    def at(slice: ShardSlice): Long = begin + before(slice.firstLayer)
  }

  private val peers = (0 until layout.world).filter(_ != rank)
  private def roomPerPeer(server: Int => Int, blockBytes: BlockShape => Long): Map[Int, Room] =
    peers.map(peer => peer -> new Room(server(peer), blockBytes)).toMap

  val parameterBuffers: IndexedSeq[Long] =
    IndexedSeq.fill(if (pullsAhead) 2 else 1)(reserve(layout.total * 4))
  val gradients: Long = reserve(layout.total * 4)
  private val inboxes = roomPerPeer(_ => rank, encodings.gradients.maxBytes)
  private val pullboxes =
    if (encodings.parameters.inPlace) Map.empty[Int, Room]
    else roomPerPeer(identity, encodings.parameters.maxBytes)
  private val shardStagings = new Room(rank, encodings.parameters.stagingBytes)
  private val gradientStagings = roomPerPeer(identity, encodings.gradients.stagingBytes)

  /** Ranges of this rank's shard, in the order of the layers. */
  val shard: IndexedSeq[ElementRange] = layout.shard(rank)

  /**
   * Offset of each range's master weights, by the range's first element. Empty if the master
   * weights are among the parameters.
   */
  private val masters: Map[Long, Long] =
    if (encodings.parameters.inPlace && !pullsAhead) Map.empty
    else {
      val begin = reserve(shard.map(_.count).sum * 4)
      shard.map(_.start).zip(shard.scanLeft(begin)((at, range) => at + range.count * 4)).toMap
    }
  val summed: Long = reserve(8)
  private val owner: Long = reserve(16)
  val bytes: Long = used

  /**
   * Return the data that the ranks exchange, for decisions about buckets.
   *
   * @param inlineThreshold largest block, in bytes, that travels inside its notice
   * @param density approximate share of gradients that are not zero
   */
  def traffic(inlineThreshold: Long, density: Double): Traffic = {
    def bytes(as: BlockEncoding) = layout.layers.map(as.expectedBytes(_, density))
    Traffic(
      layout.world,
      bytes(encodings.parameters),
      bytes(encodings.gradients),
      inlineThreshold * layout.world,
      pullsAhead
    )
  }

  /** Write into the memory that it belongs to this rank of the fit `job`. */
  def markOwner(segment: Segment, job: Long): Unit = segment.access {
    segment.putLong(owner, job)
    segment.putLong(owner + 8, rank.toLong)
  }

  def isOwned(segment: Segment, job: Long): Boolean = segment.access {
    val stored = segment.slices(owner, 16).head.order(ByteOrder.nativeOrder)
    stored.getLong() == job && stored.getLong() == rank
  }

  /** Return the byte offset of the master weights of a range of this rank's shard. */
  def master(range: ElementRange): Long =
    masters.getOrElse(range.start, parameters(0) + range.start * 4)

  def parameters(version: Long): Long = parameterBuffers((version % parameterBuffers.size).toInt)

  def slice(server: Int, bucket: Batch): ShardSlice =
    ShardSlice(server, bucket.first - 1, layout.block(server, bucket.first - 1, bucket.last - 1))

  /**
   * Return the slices of each bucket: by bucket, then server.
   *
   * @throws CommException if the buckets do not have all layers, each once
   */
  def slices(buckets: IndexedSeq[Batch]): IndexedSeq[IndexedSeq[ShardSlice]] = {
    val layers = layout.layers.size
    val sorted = buckets.sortBy(_.first)
    // each bucket begins where the bucket before ends
    val follow = sorted.map(_.first) :+ (layers + 1)
    if (
      buckets.exists(bucket => bucket.last < bucket.first) || follow != 1 +: sorted.map(_.last + 1)
    )
      throw new CommException(
        CommException.Protocol,
        s"buckets ${buckets.mkString(", ")} do not cover $layers layers"
      )
    buckets.map(bucket => (0 until layout.world).map(slice(_, bucket)))
  }

  /** Return where `peer`'s gradients for a slice of this rank's shard arrive. */
  def inbox(peer: Int, slice: ShardSlice): Long = inboxes(peer).at(slice)

  /** Return where an encoded slice of another server's shard arrives. */
  def pullbox(slice: ShardSlice): Long = pullboxes(slice.server).at(slice)

  def shardStaging(slice: ShardSlice): Long = shardStagings.at(slice)

  def gradientStaging(slice: ShardSlice): Long = gradientStagings(slice.server).at(slice)
}

private[comm] object SegmentMap {
  private val LineBytes = 64L

  /** Amount that one version adds to `summed`. A bucket adds 1. */
  val SummedVersion: Long = 1L << 32
}
