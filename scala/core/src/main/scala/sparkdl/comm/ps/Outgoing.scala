package sparkdl.comm.ps

import java.nio.ByteBuffer

import sparkdl.comm.transport.ControlPeer

/** What one rank gives to the others: blocks, each announced by a notice or, if it is a small one, inside of it. */
private[ps] final class Outgoing(job: Long, rank: Int, node: PsNode) {
  private val shelf = new Shelf(job, node.blocks)
  private var controls = Map.empty[Int, ControlPeer]

  def connect(other: Int, peer: Peer): Unit =
    controls += other -> node.connect(other, peer.controlHost, peer.controlPort)

  /** Parameters of the shard that this rank serves. Small ones are published too: Spark's BlockManager holds the model. */
  def parameters(batch: Int, version: Long, block: Array[ByteBuffer]): Unit = {
    shelf.put(BlockNames.parameters(rank, batch, version), Notice.Parameters, version, block)
    val contents = if (isSmall(block)) copy(block) else Notice.Apart
    controls.foreach { case (other, control) =>
      control.send(Notice(job, other, rank, Notice.Parameters, batch, version, contents))
    }
  }

  /** Gradients that this rank computed for the shard that `server` serves. */
  def gradients(server: Int, batch: Int, version: Long, block: Array[ByteBuffer]): Unit = {
    val small = isSmall(block)
    if (!small) shelf.put(BlockNames.gradients(rank, server, batch, version), Notice.Gradients, version, block)
    val contents = if (small) copy(block) else Notice.Apart
    controls(server).send(Notice(job, server, rank, Notice.Gradients, batch, version, contents))
  }

  /** As [[Shelf.retire]]. */
  def retire(kind: Notice.Kind, version: Long, over: () => Boolean): Option[String] =
    shelf.retire(kind, version, over)

  /** As [[Shelf.clear]]. */
  def clear(over: () => Boolean): Boolean = shelf.clear(over)

  private def isSmall(block: Array[ByteBuffer]): Boolean = block.map(_.remaining.toLong).sum <= node.blocks.fetchAbove

  private def copy(block: Array[ByteBuffer]): Array[Byte] = {
    val bytes = ByteBuffer.allocate(block.map(_.remaining).sum)
    block.foreach(chunk => bytes.put(chunk.duplicate))
    bytes.array
  }
}
