package sparkdl.comm.ps

import java.nio.ByteBuffer

import sparkdl.comm.transport.ControlPeer

/** What one rank gives to the others: blocks, each announced by a notice or, if it is a small one, inside of it. */
private[ps] final class Outgoing(job: Long, rank: Int, node: PsNode) {
  private val published = new PublishedBlocks(job, node.blocks)
  private var controls = Map.empty[Int, ControlPeer]

  def connect(other: Int, peer: Peer): Unit =
    controls += other -> node.connect(other, peer.controlHost, peer.controlPort)

  /** Parameters of the shard that this rank serves. Small ones are published too: Spark's BlockManager holds the model. */
  def parameters(bucket: Int, version: Long, block: Array[ByteBuffer]): Unit = {
    published.put(BlockNames.parameters(rank, bucket, version), Notice.Parameters, version, block)
    val contents = if (fitsInline(block)) copy(block) else Notice.ToFetch
    controls.foreach { case (other, control) =>
      control.send(Notice(job, other, rank, Notice.Parameters, bucket, version, contents))
    }
  }

  /** Gradients that this rank computed for the shard that `server` serves. */
  def gradients(server: Int, bucket: Int, version: Long, block: Array[ByteBuffer]): Unit = {
    val small = fitsInline(block)
    if (!small) published.put(BlockNames.gradients(rank, server, bucket, version), Notice.Gradients, version, block)
    val contents = if (small) copy(block) else Notice.ToFetch
    controls(server).send(Notice(job, server, rank, Notice.Gradients, bucket, version, contents))
  }

  /** As [[PublishedBlocks.retire]]. */
  def retire(kind: Notice.Kind, version: Long, over: () => Boolean): Option[String] =
    published.retire(kind, version, over)

  /** As [[PublishedBlocks.clear]]. */
  def clear(over: () => Boolean): Boolean = published.clear(over)

  private def fitsInline(block: Array[ByteBuffer]): Boolean =
    block.map(_.remaining.toLong).sum <= node.blocks.inlineThreshold

  private def copy(block: Array[ByteBuffer]): Array[Byte] = {
    val bytes = ByteBuffer.allocate(block.map(_.remaining).sum)
    block.foreach(chunk => bytes.put(chunk.duplicate))
    bytes.array
  }
}
