// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.gang

import scala.util.control.NonFatal

import org.apache.spark.BarrierTaskContext

import sparkdl.comm.{Build, Clock, CommException, CommExecutorPlugin}
import sparkdl.comm.ps.PsSession
import sparkdl.comm.transport.ChunkPeer

/**
 * Rank that runs in its executor's JVM, as one task of a barrier stage, for the whole job. Its
 * number is that of its partition.
 *
 * @param peers by rank
 * @param inlineThreshold largest block, in bytes, that travels inside its notice
 */
private[comm] final class JvmRank private (
    val session: PsSession,
    val peers: IndexedSeq[ChunkPeer],
    val inlineThreshold: Long,
    val clock: Clock
) {
  def number: Int = session.rank
  def world: Int = peers.size
}

private[comm] object JvmRank {

  /**
   * Run `body` as a rank of the gang, together with the other tasks of the stage. Return its result
   * when all ranks have finished. If `body` fails, the other ranks get an error instead of waiting.
   *
   * @param job id of the gang; every gang of the application has a different one
   */
  def run[T](context: BarrierTaskContext, job: Long)(body: JvmRank => T): T = {
    val node = CommExecutorPlugin.node
    val session = node.join(job, context.partitionId())
    try {
      val members = allGather(context, Member(node.address, Build.id))
      Build.checkSame(members.map(_.build), session.rank)
      val rank =
        new JvmRank(session, members.map(_.address), node.blocks.inlineThreshold, node.clock)
      val result = body(rank)
      // others may still fetch this rank's last blocks
      session.gathering.begin(Array.emptyByteArray).parts()
      result
    } catch {
      case e @ (NonFatal(_) | _: InterruptedException) =>
        session.abandon(describe(e))
        throw e
    } finally session.close()
  }

  /** Return a description of a failure and its causes: BigDL wraps what a layer throws. */
  private def describe(failure: Throwable): String =
    Iterator.iterate(failure)(_.getCause).takeWhile(_ != null).take(MostCauses)
      .mkString("\nCaused by: ")

  private val MostCauses = 10

  /**
   * Gather the addresses and builds of all tasks. It takes a second for any amount of data, so it
   * is called once.
   */
  private def allGather(context: BarrierTaskContext, own: Member): IndexedSeq[Member] =
    context.allGather(own.encode).toIndexedSeq.map(Member.decode)

  private final case class Member(address: ChunkPeer, build: String) {
    def encode: String =
      Seq(address.host, address.port.toString, address.executor, build).mkString(Member.Separator)
  }

  private object Member {
    val Separator = "\t"

    def decode(text: String): Member = text.split(Separator) match {
      case Array(host, port, executor, build) =>
        Member(ChunkPeer(host, port.toInt, executor), build)
      case _ => throw new CommException(CommException.Protocol, s"not a member of a gang: $text")
    }
  }
}
