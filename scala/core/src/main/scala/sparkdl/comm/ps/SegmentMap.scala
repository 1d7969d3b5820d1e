package sparkdl.comm.ps

import sparkdl.comm.ibatch.Batch

/**
 * What one server has of the layers of a batch: what travels as one block.
 *
 * @param before elements of the server's shard in earlier layers
 * @param packedBefore those of them in short ranges
 */
final case class ShardSlice(shape: BlockShape, before: Long, packedBefore: Long) {
  def isEmpty: Boolean = shape.count == 0
}

/**
 * Where everything lies in one rank's segment, as byte offsets. In float32 the shard that this rank serves *is* its stripe
 * of the parameters that the model computes with. In a 16-bit wire format the exact values live apart in `master`, because
 * every rank, the owner too, must compute with the same rounded ones; and so they do where parameters are pulled ahead,
 * because the optimizer writes them while backward still computes with the ones before.
 *
 *   parameters, of even and odd versions apart if they are pulled ahead | gradients | inbox: one slot per peer, its
 *   gradients for this shard | pullbox: likewise, 16-bit parameters | staging of the shard's block | staging of the gradient
 *   blocks per peer | master | summed: what tells the worker how many batches of gradients are added up
 *
 * All from inbox to master hold the elements of one shard in the order of the layers. So a batch, however the layers are
 * cut into batches, has a stretch of them to itself, inside of which they lie as they travel; in `master` they do not.
 *
 * @param ahead parameters of the next version arrive while this one is computed with
 */
final class SegmentMap(val layout: ShardLayout, val rank: Int, val wire: WireFormat, val ahead: Boolean = false) {
  import SegmentMap.Line

  private val world = layout.world
  private val shapes: IndexedSeq[BlockShape] = (0 until world).map(layout.wholeBlock)

  private var used = 0L
  private def reserve(bytes: Long): Long = {
    val at = used
    used = (used + bytes + Line - 1) / Line * Line
    at
  }
  private val half = wire != WireFormat.Fp32
  private def peers = (0 until world).filter(_ != rank)
  private def perPeer(bytes: Int => Long): Map[Int, Long] = peers.map(peer => peer -> reserve(bytes(peer))).toMap
  private def stagedBytes(shape: BlockShape): Long = staged(shape.count, shape.packedCount)
  private def staged(count: Long, packed: Long): Long = if (half) count * 2 else packed * 4

  val parameterBuffers: IndexedSeq[Long] = IndexedSeq.fill(if (ahead) 2 else 1)(reserve(layout.total * 4))
  val gradients: Long = reserve(layout.total * 4)
  private val inboxes = perPeer(_ => shapes(rank).count * wire.bytes)
  private val pullboxes = if (half) perPeer(peer => shapes(peer).count * 2) else Map.empty[Int, Long]
  private val shardStagings = reserve(stagedBytes(shapes(rank)))
  private val gradientStagings = perPeer(peer => stagedBytes(shapes(peer)))
  private val masters: Option[Long] = if (half || ahead) Some(reserve(shapes(rank).count * 4)) else None
  val summed: Long = reserve(8)
  val bytes: Long = used

  /** The ranges of this rank's shard, in the order of the layers. */
  val shard: IndexedSeq[ElementRange] = layout.shard(rank)

  private val masterAt: Map[Long, Long] = masters.fold(Map.empty[Long, Long]) { begin =>
    shard.map(_.start).zip(shard.scanLeft(begin)((at, range) => at + range.count * 4)).toMap
  }

  /** Byte offset of the exact values of a range of this rank's shard: what the optimizer updates. */
  def master(range: ElementRange): Long =
    if (masters.isDefined) masterAt(range.start) else parameters(0) + range.start * 4

  def parameters(version: Long): Long = parameterBuffers((version % parameterBuffers.size).toInt)

  def slice(server: Int, batch: Batch): ShardSlice = {
    val earlier = layout.block(server, 0, batch.first - 2)
    ShardSlice(layout.block(server, batch.first - 1, batch.last - 1), earlier.count, earlier.packedCount)
  }

  /** Where `peer`'s gradients for a slice of this rank's shard arrive. */
  def inbox(peer: Int, slice: ShardSlice): Long = inboxes(peer) + slice.before * wire.bytes

  /** Where a slice of `server`'s shard arrives in a 16-bit format. */
  def pullbox(server: Int, slice: ShardSlice): Long = pullboxes(server) + slice.before * 2

  def shardStaging(slice: ShardSlice): Long = shardStagings + staged(slice.before, slice.packedBefore)

  def gradientStaging(server: Int, slice: ShardSlice): Long =
    gradientStagings(server) + staged(slice.before, slice.packedBefore)

  /** Peers in the order in which their gradients are added. */
  val peersInOrder: IndexedSeq[Int] = peers
}

object SegmentMap {
  private val Line = 64L

  /** What one version counts in `summed`; a batch counts 1. */
  val SummedVersion: Long = 1L << 32
}
