package sparkdl.comm.ps

import java.util.concurrent.CompletableFuture

import sparkdl.comm.{Clock, CommException}
import sparkdl.comm.transport.PeerMessages

/** What all ranks of a session gather, in rounds: a small part of each rank. All ranks begin rounds in the same order. */
private[comm] final class Gathering private[ps] (
    job: Long,
    rank: Int,
    world: Int,
    timeoutSeconds: Double,
    clock: Clock,
    incoming: Incoming,
    outgoing: Outgoing
) {
  import Gathering._

  private var rounds = 0L

  /** Gives this rank's `part`, of at most [[MostBytes]], to the others; it does not wait. */
  def begin(part: Array[Byte]): Round = {
    incoming.checkNotFailed()
    require(part.length <= MostBytes, s"a part of ${part.length} bytes is to be gathered, at most $MostBytes can be")
    rounds += 1
    incoming.contributed(Contribution(job, rank, rank, rounds, part))
    outgoing.contribute(rounds, part)
    val number = rounds
    new Round(() => parts(number))
  }

  private def parts(round: Long): IndexedSeq[Array[Byte]] = {
    val arriving = (0 until world).map(incoming.contribution(round, _))
    val deadline = clock.nanoTime + (timeoutSeconds * 1e9).toLong
    incoming.await(CompletableFuture.allOf(arriving: _*), deadline) {
      val missing = arriving.indexWhere(!_.isDone)
      new CommException(
        CommException.Deadline,
        s"rank $rank waited $timeoutSeconds s to hear of rank $missing; a rank that needs longer than that for a step" +
          " needs a larger spark.sparkdl.comm.timeout",
        missing
      )
    }
    incoming.forgetRound(round)
    arriving.map(_.join())
  }
}

private[comm] object Gathering {

  /** Of a rank's part: a message has a little more. */
  val MostBytes: Int = PeerMessages.MaxBytes - 1024

  /** What one round gathers. */
  final class Round private[Gathering] (wait: () => IndexedSeq[Array[Byte]]) {

    /** Waits for the parts of all ranks, by rank. Called once. */
    def parts(): IndexedSeq[Array[Byte]] = wait()
  }
}
