package sparkdl.comm.ps

import java.nio.ByteBuffer

import sparkdl.comm.flow.Urgency
import sparkdl.comm.transport.ChunkPeer

/** Outgoing blocks of one rank. A notice announces each block, or contains it if the block is small. */
private[ps] final class OutgoingBlocks(job: Long, rank: Int, node: PsNode, urgencies: BlockUrgencies) {
  private val published = new PublishedBlocks(job, node.blocks, node.served)
  private var addresses = Map.empty[Int, ChunkPeer]
  private var ranks = Map.empty[ChunkPeer, Int] // one of each executor
  private var inlineFrom = 0L

  /**
   * Set the peers.
   *
   * @param peers by rank
   * @param inlineFrom the first version whose small blocks travel inside their notices
   */
  def open(peers: IndexedSeq[ChunkPeer], inlineFrom: Long): Unit = {
    this.inlineFrom = inlineFrom
    addresses = peers.indices.filter(_ != rank).map(other => other -> peers(other)).toMap
    ranks = addresses.map(_.swap)
  }

  /** Tell the other ranks where this rank's memory is. */
  def offer(path: String): Unit = SegmentOffer.thisHost.foreach { host =>
    addresses.keys.foreach(other => send(other, SegmentOffer(job, other, rank, host, path).encode))
  }

  /** Send this rank's part of a [[Gathering]] to the others. */
  def contribute(round: Long, part: Array[Byte]): Unit =
    addresses.keys.foreach(other => send(other, Contribution(job, other, rank, round, part).encode))

  /** Tell the other ranks that this rank failed. */
  def announceFailure(reason: String): Unit =
    addresses.keys.foreach(other => send(other, PeerFailed(job, other, rank, reason).encode))

  /**
   * Publish parameters of the shard that this rank serves. Small ones are published too: Spark's BlockManager holds the
   * model.
   */
  def parameters(bucket: Int, version: Long, slice: ShardSlice, block: Array[ByteBuffer]): Unit = {
    val urgency = urgencies.parameters(version, slice)
    published.put(BlockNames.parameters(rank, bucket, version), Notice.Parameters, version, block, priorityOf(urgency))
    val contents = if (isInline(version, block)) copy(block) else Notice.ToFetch
    addresses.keys.foreach { other =>
      send(other, Notice(job, other, rank, Notice.Parameters, bucket, version, bytes(block), contents).encode, urgency)
    }
  }

  /** Publish gradients that this rank computed for the shard of `server`. */
  def gradients(server: Int, bucket: Int, version: Long, slice: ShardSlice, block: Array[ByteBuffer]): Unit = {
    val urgency = urgencies.gradients(version, slice)
    val small = isInline(version, block)
    if (!small) {
      val name = BlockNames.gradients(rank, server, bucket, version)
      published.put(name, Notice.Gradients, version, block, priorityOf(urgency))
    }
    val contents = if (small) copy(block) else Notice.ToFetch
    val notice = Notice(job, server, rank, Notice.Gradients, bucket, version, bytes(block), contents)
    send(server, notice.encode, urgency)
  }

  /** Retire a version's blocks: see [[PublishedBlocks.retire]]. */
  def retire(kind: Notice.Kind, version: Long, isOver: () => Boolean): Option[String] =
    published.retire(kind, version, isOver)

  /** Retire all blocks: see [[PublishedBlocks.clear]]. */
  def clear(isOver: () => Boolean): Boolean = published.clear(isOver)

  private def send(other: Int, message: Array[Byte], urgency: Urgency = BlockUrgencies.OfMessages): Unit =
    node.sender.send(addresses(other), message, urgency, turn(other))

  private def turn(other: Int): Int = Math.floorMod(other - rank, addresses.size + 1)

  private def priorityOf(urgency: Urgency): ServedBlocks.Priority =
    ServedBlocks.Priority(urgency, asks => ranks.get(asks).fold(0)(turn))

  private def isInline(version: Long, block: Array[ByteBuffer]): Boolean =
    version >= inlineFrom && bytes(block) <= node.blocks.inlineThreshold

  private def bytes(block: Array[ByteBuffer]): Long = block.map(_.remaining.toLong).sum

  private def copy(block: Array[ByteBuffer]): ByteBuffer = {
    val copied = ByteBuffer.allocate(block.map(_.remaining).sum)
    block.foreach(chunk => copied.put(chunk.duplicate))
    copied.flip()
  }
}
