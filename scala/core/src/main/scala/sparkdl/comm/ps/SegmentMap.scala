package sparkdl.comm.ps

/**
 * Where everything lies in one rank's segment, as byte offsets. In float32 the shard that this rank serves *is* its stripe
 * of the parameters that the model computes with; in a 16-bit wire format the exact values live apart in `master`, because
 * every rank, the owner too, must compute with the same rounded ones.
 *
 *   parameters | gradients | inbox: one slot per peer, its gradients for this shard | pullbox: likewise, 16-bit parameters
 *   | staging of the shard's block | staging of the gradient blocks per peer | master
 */
final class SegmentMap(val layout: ShardLayout, val rank: Int, val wire: WireFormat) {
  import SegmentMap.Line

  private val world = layout.world
  val shard: BlockShape = layout.wholeBlock(rank)
  val shapes: IndexedSeq[BlockShape] = (0 until world).map(layout.wholeBlock)

  private var used = 0L
  private def reserve(bytes: Long): Long = {
    val at = used
    used = (used + bytes + Line - 1) / Line * Line
    at
  }
  private val half = wire != WireFormat.Fp32
  private def peers = (0 until world).filter(_ != rank)
  private def perPeer(bytes: Int => Long): Map[Int, Long] = peers.map(peer => peer -> reserve(bytes(peer))).toMap
  private def stagedBytes(shape: BlockShape): Long = if (half) shape.count * 2 else shape.packedCount * 4

  val parameters: Long = reserve(layout.total * 4)
  val gradients: Long = reserve(layout.total * 4)
  val inbox: Map[Int, Long] = perPeer(_ => shard.count * wire.bytes)
  val pullbox: Map[Int, Long] = if (half) perPeer(peer => shapes(peer).count * 2) else Map.empty
  val shardStaging: Long = reserve(stagedBytes(shard))
  val gradientStaging: Map[Int, Long] = perPeer(peer => stagedBytes(shapes(peer)))
  val master: Option[Long] = if (half) Some(reserve(shard.count * 4)) else None
  val bytes: Long = used

  /** Byte offset of the exact values of each of the shard's ranges: what the optimizer updates. */
  def masterOffsets: IndexedSeq[Long] = master match {
    case None => shard.ranges.map(range => parameters + range.start * 4)
    case Some(begin) => shard.ranges.scanLeft(begin)((at, range) => at + range.count * 4).init
  }
}

object SegmentMap {
  private val Line = 64L
}
