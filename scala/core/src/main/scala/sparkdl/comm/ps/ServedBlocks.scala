package sparkdl.comm.ps

import java.util.concurrent.ConcurrentHashMap

import sparkdl.comm.flow.Urgency
import sparkdl.comm.transport.ChunkPeer

/** Priorities of the blocks that the ranks of this executor serve, by job and name. */
private[ps] final class ServedBlocks {
  import ServedBlocks._

  private val priorities = new ConcurrentHashMap[(Long, String), Priority]

  def add(job: Long, name: String, block: Priority): Unit = priorities.put((job, name), block)

  def remove(job: Long, name: String): Unit = priorities.remove((job, name))

  /** Return the priority of a block; any priority if it is not served. */
  def apply(job: Long, name: String): Priority = priorities.getOrDefault((job, name), Unknown)
}

private[ps] object ServedBlocks {

  /**
   * Priority of a block.
   *
   * @param turn position among equally urgent blocks, by the peer that asks; see [[sparkdl.comm.flow.SendRequest]]
   */
  final case class Priority(urgency: Urgency, turn: ChunkPeer => Int)

  private val Unknown = Priority(BlockUrgencies.OfMessages, _ => 0)
}
