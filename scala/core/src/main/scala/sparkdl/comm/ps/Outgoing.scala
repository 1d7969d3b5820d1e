package sparkdl.comm.ps

import java.nio.ByteBuffer

import sparkdl.comm.transport.ChunkPeer

/** What one rank gives to the others: blocks, each announced by a notice or, if it is a small one, inside of it. */
private[ps] final class Outgoing(job: Long, rank: Int, node: PsNode) {
  private val published = new PublishedBlocks(job, node.blocks)
  private var addresses = Map.empty[Int, ChunkPeer]

  /** @param peers by rank */
  def open(peers: IndexedSeq[Peer]): Unit =
    addresses = peers.indices.filter(_ != rank).map(other => other -> peers(other).address).toMap

  /** Tells the others where this rank's memory is. */
  def offer(path: String): Unit = SegmentOffer.thisHost.foreach { host =>
    addresses.foreach { case (other, address) => node.send(address, SegmentOffer(job, other, rank, host, path).encode) }
  }

  /** Gives the others this rank's part of what all ranks gather. */
  def contribute(round: Long, part: Array[Byte]): Unit =
    addresses.foreach { case (other, address) =>
      node.send(address, Contribution(job, other, rank, round, part).encode)
    }

  /** Tells the others that this rank failed. */
  def farewell(reason: String): Unit =
    addresses.foreach { case (other, address) => node.send(address, Farewell(job, other, rank, reason).encode) }

  /** Parameters of the shard that this rank serves. Small ones are published too: Spark's BlockManager holds the model. */
  def parameters(bucket: Int, version: Long, block: Array[ByteBuffer]): Unit = {
    published.put(BlockNames.parameters(rank, bucket, version), Notice.Parameters, version, block)
    val contents = if (fitsInline(block)) copy(block) else Notice.ToFetch
    addresses.keys.foreach(tell(_, Notice.Parameters, bucket, version, bytes(block), contents))
  }

  /** Gradients that this rank computed for the shard that `server` serves. */
  def gradients(server: Int, bucket: Int, version: Long, block: Array[ByteBuffer]): Unit = {
    val small = fitsInline(block)
    if (!small) published.put(BlockNames.gradients(rank, server, bucket, version), Notice.Gradients, version, block)
    tell(server, Notice.Gradients, bucket, version, bytes(block), if (small) copy(block) else Notice.ToFetch)
  }

  /** As [[PublishedBlocks.retire]]. */
  def retire(kind: Notice.Kind, version: Long, over: () => Boolean): Option[String] =
    published.retire(kind, version, over)

  /** As [[PublishedBlocks.clear]]. */
  def clear(over: () => Boolean): Boolean = published.clear(over)

  private def tell(
      other: Int,
      kind: Notice.Kind,
      bucket: Int,
      version: Long,
      blockBytes: Long,
      contents: ByteBuffer
  ): Unit = node.send(addresses(other), Notice(job, other, rank, kind, bucket, version, blockBytes, contents).encode)

  private def fitsInline(block: Array[ByteBuffer]): Boolean = bytes(block) <= node.blocks.inlineThreshold

  private def bytes(block: Array[ByteBuffer]): Long = block.map(_.remaining.toLong).sum

  private def copy(block: Array[ByteBuffer]): ByteBuffer = {
    val copied = ByteBuffer.allocate(block.map(_.remaining).sum)
    block.foreach(chunk => copied.put(chunk.duplicate))
    copied.flip()
  }
}
