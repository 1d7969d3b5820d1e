package sparkdl.comm.ps

import java.util.concurrent.ConcurrentHashMap

import sparkdl.comm.flow.Urgency
import sparkdl.comm.transport.ChunkPeer

/** Priorities of the blocks that the ranks of this executor serve, by job and name. */
private[ps] final class ServedBlocks {
  import ServedBlocks._

  private val served = new ConcurrentHashMap[(Long, String), Served]

  def add(job: Long, name: String, block: Served): Unit = served.put((job, name), block)

  def remove(job: Long, name: String): Unit = served.remove((job, name))

  /** Return the priority of a block; any priority if it is not served. */
  def apply(job: Long, name: String): Served = served.getOrDefault((job, name), Unknown)
}

private[ps] object ServedBlocks {

  /**
   * Priority of a block.
   *
   * @param turn position among equally urgent blocks, by the peer that asks; see [[sparkdl.comm.flow.Wanted]]
   */
  final case class Served(urgency: Urgency, turn: ChunkPeer => Int)

  private val Unknown = Served(BlockUrgencies.First, _ => 0)
}
