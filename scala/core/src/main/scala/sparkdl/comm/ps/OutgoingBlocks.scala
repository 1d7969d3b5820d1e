// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import java.nio.ByteBuffer

import sparkdl.comm.flow.{PhaseNumbers, Urgency}
import sparkdl.comm.transport.ChunkPeer

/**
 * Outgoing blocks of one rank. A notice announces each block, or contains it if the block is small.
 *
 * @param peers by rank
 * @param inlineFrom the first version whose small blocks travel inside their notices
 */
private[ps] final class OutgoingBlocks(
    job: Long,
    rank: Int,
    node: PsNode,
    peers: IndexedSeq[ChunkPeer],
    inlineFrom: Long
) {
  private val urgencies = new BlockUrgencies(node)
  private val published = new PublishedBlocks(job, node.blocks, node.served)
  private val addresses = peers.indices.filter(_ != rank).map(other => other -> peers(other)).toMap
  private val ranks = addresses.map(_.swap) // one of each executor

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
   * Publish parameters of the shard that this rank serves. Small ones are published too: Spark's
   * BlockManager holds the model.
   */
  def parameters(bucket: Int, version: Long, slice: ShardSlice, block: Array[ByteBuffer]): Unit = {
    val urgency = urgencies.parameters(version, slice)
    published.put(
      BlockNames.parameters(rank, bucket, version),
      Notice.Parameters,
      version,
      block,
      priorityOf(urgency)
    )
    val contents = if (isInline(version, block)) copy(block) else Notice.ToFetch
    addresses.keys.foreach { other =>
      send(
        other,
        Notice(job, other, rank, Notice.Parameters, bucket, version, bytes(block), contents).encode,
        urgency
      )
    }
  }

  /** Publish gradients that this rank computed for the shard of `server`. */
  def gradients(
      server: Int,
      bucket: Int,
      version: Long,
      slice: ShardSlice,
      block: Array[ByteBuffer]
  ): Unit = {
    val urgency = urgencies.gradients(version, slice)
    val small = isInline(version, block)
    if (!small) {
      val name = BlockNames.gradients(rank, server, bucket, version)
      published.put(name, Notice.Gradients, version, block, priorityOf(urgency))
    }
    val contents = if (small) copy(block) else Notice.ToFetch
    val notice =
      Notice(job, server, rank, Notice.Gradients, bucket, version, bytes(block), contents)
    send(server, notice.encode, urgency)
  }

  /** Retire a version's blocks: see [[PublishedBlocks.retire]]. */
  def retire(kind: Notice.Kind, version: Long, isOver: () => Boolean): Option[String] =
    published.retire(kind, version, isOver)

  /** Retire all blocks: see [[PublishedBlocks.clear]]. */
  def clear(isOver: () => Boolean): Boolean = published.clear(isOver)

  private def send(
      other: Int,
      message: Array[Byte],
      urgency: Urgency = BlockUrgencies.OfMessages
  ): Unit =
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

/**
 * Priorities of the blocks that one rank serves to the others.
 *
 * Parameters of a version come before its gradients, and its gradients before the parameters of the
 * next version. So a rank that is behind gets the data that lets it catch up. The others' gradients
 * are of no use to it before its own.
 */
private[ps] final class BlockUrgencies(node: PsNode) {
  private val phases = new PhaseNumbers(() => node.nextPhase())

  /** Return the priority of parameters. Forward needs the first layers first. */
  def parameters(version: Long, slice: ShardSlice): Urgency =
    Urgency(phases(2 * version), slice.firstLayer)

  /**
   * Return the priority of gradients. Backward makes the last layers first, and the optimizer takes
   * them in that order.
   */
  def gradients(version: Long, slice: ShardSlice): Urgency =
    Urgency(phases(2 * version + 1), -slice.firstLayer)
}

private[ps] object BlockUrgencies {

  /** Priority of messages that belong to no block. They are small and rare. */
  val OfMessages: Urgency = Urgency(0, 0)
}
