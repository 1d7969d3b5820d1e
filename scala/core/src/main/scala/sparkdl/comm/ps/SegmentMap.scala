package sparkdl.comm.ps

import java.nio.ByteOrder

import sparkdl.comm.CommException
import sparkdl.comm.ibatch.{Batch, Traffic}

/**
 * One server's part of consecutive layers, sent as one block.
 *
 * @param firstLayer counted from 0
 */
private[comm] final case class ShardSlice(server: Int, firstLayer: Int, shape: BlockShape) {
  def isEmpty: Boolean = shape.count == 0
}

/**
 * Where everything lies in one rank's segment, as byte offsets. If blocks of parameters are the elements themselves, the shard
 * that this rank serves *is* its stripe of the parameters that the model computes with. In another encoding the exact values
 * live apart in `master`, because every rank, the owner too, must compute with the same decoded ones; and so they do where
 * parameters are pulled ahead, because the optimizer writes them while backward still computes with the ones before.
 *
 *   parameters, of even and odd versions apart if they are pulled ahead | gradients | inbox: one slot per peer, its
 *   gradients for this shard | pullbox: likewise, encoded parameters | staging of the shard's block | staging of the gradient
 *   blocks per peer | master | summed: what tells the worker how many buckets of gradients are added up | owner: whose it is
 *
 * All from inbox to staging have room for a block of each layer, one after the other. A block of several layers needs no more
 * than their blocks apart, so it lies where that of its first layer would, however the layers are cut into buckets. `master`
 * has the elements of the shard in the order of the layers.
 *
 * @param ahead parameters of the next version arrive while this one is computed with
 */
private[comm] final class SegmentMap(
    val layout: ShardLayout,
    val rank: Int,
    val encodings: Encodings,
    val ahead: Boolean = false
) {
  import SegmentMap.Line

  private var used = 0L
  private def reserve(bytes: Long): Long = {
    val at = used
    used = (used + bytes + Line - 1) / Line * Line
    at
  }

  /** Room for blocks of `server`'s shard. */
  private final class Room(server: Int, blockBytes: BlockShape => Long) {
    private val before =
      layout.layers.indices.scanLeft(0L)((sum, layer) => sum + blockBytes(layout.block(server, layer, layer)))
    private val begin = reserve(before.last)
    def at(slice: ShardSlice): Long = begin + before(slice.firstLayer)
  }

  private val peers = (0 until layout.world).filter(_ != rank)
  private def roomPerPeer(server: Int => Int, blockBytes: BlockShape => Long): Map[Int, Room] =
    peers.map(peer => peer -> new Room(server(peer), blockBytes)).toMap

  val parameterBuffers: IndexedSeq[Long] = IndexedSeq.fill(if (ahead) 2 else 1)(reserve(layout.total * 4))
  val gradients: Long = reserve(layout.total * 4)
  private val inboxes = roomPerPeer(_ => rank, encodings.gradients.maxBytes)
  private val pullboxes =
    if (encodings.parameters.inPlace) Map.empty[Int, Room]
    else roomPerPeer(identity, encodings.parameters.maxBytes)
  private val shardStagings = new Room(rank, encodings.parameters.stagingBytes)
  private val gradientStagings = roomPerPeer(identity, encodings.gradients.stagingBytes)

  /** The ranges of this rank's shard, in the order of the layers. */
  val shard: IndexedSeq[ElementRange] = layout.shard(rank)

  /** By the first element of a range. Empty if the parameters themselves are the exact values. */
  private val masters: Map[Long, Long] =
    if (encodings.parameters.inPlace && !ahead) Map.empty
    else {
      val begin = reserve(shard.map(_.count).sum * 4)
      shard.map(_.start).zip(shard.scanLeft(begin)((at, range) => at + range.count * 4)).toMap
    }
  val summed: Long = reserve(8)
  private val owner: Long = reserve(16)
  val bytes: Long = used

  /**
   * What the ranks send each other, for who decides about buckets.
   *
   * @param inlineThreshold a block of up to so many bytes travels inside of its notice
   * @param density the share of gradients that are not zero, about
   */
  def traffic(inlineThreshold: Long, density: Double): Traffic = {
    def bytes(as: BlockEncoding) = layout.layers.map(as.expectedBytes(_, density))
    Traffic(
      layout.world,
      bytes(encodings.parameters),
      bytes(encodings.gradients),
      inlineThreshold * layout.world,
      ahead
    )
  }

  /** Says in the memory that it is that of this rank, of the fit `job`. */
  def own(segment: Segment, job: Long): Unit = segment.access {
    segment.putLong(owner, job)
    segment.putLong(owner + 8, rank.toLong)
  }

  def isOwned(segment: Segment, job: Long): Boolean = segment.access {
    val said = segment.slices(owner, 16).head.order(ByteOrder.nativeOrder)
    said.getLong() == job && said.getLong() == rank
  }

  /** Byte offset of the exact values of a range of this rank's shard: what the optimizer updates. */
  def master(range: ElementRange): Long = masters.getOrElse(range.start, parameters(0) + range.start * 4)

  def parameters(version: Long): Long = parameterBuffers((version % parameterBuffers.size).toInt)

  def slice(server: Int, bucket: Batch): ShardSlice =
    ShardSlice(server, bucket.first - 1, layout.block(server, bucket.first - 1, bucket.last - 1))

  /**
   * What each server has of each bucket: by bucket, then server.
   *
   * @throws CommException if they are not all layers, each once
   */
  def slices(buckets: IndexedSeq[Batch]): IndexedSeq[IndexedSeq[ShardSlice]] = {
    val layers = layout.layers.size
    val sorted = buckets.sortBy(_.first)
    val follow = sorted.map(_.first) :+ (layers + 1) // each bucket begins where the one before ends
    if (buckets.exists(bucket => bucket.last < bucket.first) || follow != 1 +: sorted.map(_.last + 1))
      throw new CommException(CommException.Protocol, s"buckets ${buckets.mkString(", ")} of $layers layers")
    buckets.map(bucket => (0 until layout.world).map(slice(_, bucket)))
  }

  /** Where `peer`'s gradients for a slice of this rank's shard arrive. */
  def inbox(peer: Int, slice: ShardSlice): Long = inboxes(peer).at(slice)

  /** Where a slice of another server's shard arrives, unless that is where its elements belong. */
  def pullbox(slice: ShardSlice): Long = pullboxes(slice.server).at(slice)

  def shardStaging(slice: ShardSlice): Long = shardStagings.at(slice)

  def gradientStaging(slice: ShardSlice): Long = gradientStagings(slice.server).at(slice)
}

private[comm] object SegmentMap {
  private val Line = 64L

  /** What one version counts in `summed`; a bucket counts 1. */
  val SummedVersion: Long = 1L << 32
}
