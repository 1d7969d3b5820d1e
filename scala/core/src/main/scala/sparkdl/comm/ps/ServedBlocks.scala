package sparkdl.comm.ps

import java.util.concurrent.ConcurrentHashMap

import sparkdl.comm.flow.Urgency
import sparkdl.comm.transport.ChunkPeer

/** How urgent the blocks are that the ranks of this executor serve, and in which turn others get them. By job and name. */
private[ps] final class ServedBlocks {
  import ServedBlocks._

  private val served = new ConcurrentHashMap[(Long, String), Served]

  def add(job: Long, name: String, block: Served): Unit = served.put((job, name), block)

  def remove(job: Long, name: String): Unit = served.remove((job, name))

  /** Of one that is not served any more, it does not matter. */
  def apply(job: Long, name: String): Served = served.getOrDefault((job, name), Unknown)
}

private[ps] object ServedBlocks {

  /** @param turn as in [[sparkdl.comm.flow.Wanted]], of who asks for it */
  final case class Served(urgency: Urgency, turn: ChunkPeer => Int)

  private val Unknown = Served(BlockUrgencies.First, _ => 0)
}
