// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import java.util.concurrent.CompletableFuture

import sparkdl.comm.{Clock, CommException}
import sparkdl.comm.transport.PeerMessages

/**
 * All-gather of small byte arrays by the ranks of a session, in rounds. All ranks begin rounds in
 * the same order.
 */
private[comm] final class Gathering private[ps] (
    job: Long,
    rank: Int,
    world: Int,
    timeoutSeconds: Double,
    clock: Clock,
    inbox: Inbox,
    outgoing: OutgoingBlocks
) {
  import Gathering._

  private var rounds = 0L

  /** Send this rank's `part`, of at most [[MostBytes]], to the others, without waiting. */
  def begin(part: Array[Byte]): Round = {
    inbox.checkNotFailed()
    require(
      part.length <= MostBytes,
      s"the part to gather has ${part.length} bytes: at most $MostBytes are allowed"
    )
    rounds += 1
    inbox.onContribution(Contribution(job, rank, rank, rounds, part))
    outgoing.contribute(rounds, part)
    val number = rounds
    new Round(() => parts(number))
  }

  private def parts(round: Long): IndexedSeq[Array[Byte]] = {
    val arriving = (0 until world).map(inbox.contribution(round, _))
    val deadline = clock.nanoTime + (timeoutSeconds * 1e9).toLong
    inbox.await(CompletableFuture.allOf(arriving: _*), deadline) {
      val missing = arriving.indexWhere(!_.isDone)
      new CommException(
        CommException.Deadline,
        s"rank $rank waited $timeoutSeconds s for a message of rank $missing; a rank that needs" +
          " longer for a step needs a larger spark.sparkdl.comm.timeout",
        missing
      )
    }
    inbox.forgetRound(round, world)
    arriving.map(_.join())
  }
}

private[comm] object Gathering {

  /** Largest part in bytes. Its message is a little longer. */
  val MostBytes: Int = PeerMessages.MaxBytes - 1024

  /** Round of an all-gather. */
  final class Round private[Gathering] (wait: () => IndexedSeq[Array[Byte]]) {

    /** Wait for the parts of all ranks and return them, by rank. Call it once. */
    def parts(): IndexedSeq[Array[Byte]] = wait()
  }
}
