// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bridge

import scala.reflect.{classTag, ClassTag}

import com.fasterxml.jackson.databind.JsonNode

import sparkdl.comm.{CommException, SpareMemory}
import sparkdl.comm.ibatch.{Batch, BatchingSettings, ComputingTimes, DirectionProfile, RankReport}
import sparkdl.comm.ps.{BlockEncoding, DenseEncoding, SessionSettings}
import sparkdl.comm.transport.ChunkPeer

/**
 * Request of a Python worker to its executor. The Python tests write
 * tests/golden/bridge/operations.json. It pins the name and the fields of every operation, and
 * whether it is posted.
 */
private[bridge] sealed trait BridgeRequest

/**
 * Request without an answer. It never waits, and is made many times in an iteration. If it fails,
 * the next answer reports the failure.
 */
private[bridge] sealed trait PostedRequest extends BridgeRequest

private[bridge] object BridgeRequest {
  final case class Hello(protocol: Long, job: Long, rank: Int) extends BridgeRequest

  /**
   * Request to open the session.
   *
   * @param spare free memory of each rank's host and executor.
   * @param builds of the executors' jars, by rank.
   * @param density approximate share of gradients that are not zero, if most are zero
   * @param canPullAhead true if the worker can compute with the parameters of one version while
   *    those of the next arrive
   */
  final case class Open(
      peers: IndexedSeq[ChunkPeer],
      spare: IndexedSeq[SpareMemory],
      builds: IndexedSeq[String],
      layers: IndexedSeq[Long],
      wire: DenseEncoding,
      density: Option[Double],
      canPullAhead: Boolean,
      sharesMemory: Boolean,
      batching: BatchingSettings,
      timeoutSeconds: Double
  ) extends BridgeRequest
  final case class Attach(path: String) extends BridgeRequest

  final case class Measured(computing: ComputingTimes) extends BridgeRequest

  /**
   * Request to plan batches again.
   *
   * @param reports of all ranks, in the order of the ranks
   */
  final case class Replan(reports: IndexedSeq[RankReport]) extends BridgeRequest
  case object ReportBatching extends BridgeRequest
  final case class Cut(pull: IndexedSeq[Batch], push: IndexedSeq[Batch]) extends PostedRequest
  final case class Publish(version: Long, batch: Int) extends PostedRequest
  final case class Prefetch(version: Long) extends PostedRequest
  final case class Pull(version: Long, batch: Int) extends BridgeRequest
  final case class Push(version: Long, batch: Int) extends PostedRequest
  final case class Collect(version: Long, batch: Int) extends BridgeRequest
  case object Close extends BridgeRequest
  final case class PutFile(local: String, remote: String) extends BridgeRequest
  final case class GetFile(remote: String, local: String) extends BridgeRequest
  final case class ListFiles(remote: String) extends BridgeRequest
  final case class RenameFile(from: String, to: String) extends BridgeRequest
  final case class DeleteFile(remote: String, recursive: Boolean) extends BridgeRequest
  final case class FileExists(remote: String) extends BridgeRequest

  /**
   * Maximum number of elements of a layer. A whole network must have fewer than 2^62, so that its
   * bytes fit a Long.
   */
  private val MostElements = 1L << 40

  /** Maximum version. A version counts 2^32 in the value that reports sums to the worker. */
  private val MostVersions = Int.MaxValue.toLong

  private final case class Operation(posted: Boolean, parse: Fields => BridgeRequest)

  private def operation[R <: BridgeRequest: ClassTag](name: String)(parse: Fields => R)
      : (String, Operation) =
    name -> Operation(classOf[PostedRequest].isAssignableFrom(classTag[R].runtimeClass), parse)

  private val operations: Map[String, Operation] = Map(
    operation("hello")(fields =>
      Hello(fields.number("protocol"), fields.number("job"), fields.int("rank"))
    ),
    operation("open")(open),
    operation("attach")(fields => Attach(fields.text("path"))),
    operation("measured")(fields => Measured(computing(fields))),
    operation("replan")(fields => Replan(fields.objects("reports").map(report))),
    operation("batching")(_ => ReportBatching),
    operation("cut")(fields => Cut(batches(fields, "pull"), batches(fields, "push"))),
    operation("publish")(fields => Publish(version(fields), fields.int("batch"))),
    operation("prefetch")(fields => Prefetch(version(fields))),
    operation("pull")(fields => Pull(version(fields), fields.int("batch"))),
    operation("push")(fields => Push(version(fields), fields.int("batch"))),
    operation("collect")(fields => Collect(version(fields), fields.int("batch"))),
    operation("close")(_ => Close),
    operation("fs.put")(fields => PutFile(fields.text("local"), fields.text("remote"))),
    operation("fs.get")(fields => GetFile(fields.text("remote"), fields.text("local"))),
    operation("fs.list")(fields => ListFiles(fields.text("remote"))),
    operation("fs.rename")(fields => RenameFile(fields.text("from"), fields.text("to"))),
    operation("fs.delete")(fields => DeleteFile(fields.text("remote"), fields.flag("recursive"))),
    operation("fs.exists")(fields => FileExists(fields.text("remote")))
  )

  def names: Set[String] = operations.keySet

  /** Return true if the operation `name` has no answer. The request need not be valid otherwise. */
  def isPosted(name: String): Boolean = operations.get(name).exists(_.posted)

  /**
   * Parse a request.
   *
   * @throws CommException of the kind Protocol, if the operation is unknown, or a field is missing,
   *    out of range or of another type
   * @throws IllegalArgumentException if the wire format or a batching policy does not exist
   */
  def parse(message: JsonNode): BridgeRequest = {
    val name = message.path("op").asText
    val known = operations.getOrElse(
      name,
      throw new CommException(
        CommException.Protocol,
        s"unknown request $name: install the Python package and the jar from one version"
      )
    )
    known.parse(new Fields(message))
  }

  private def open(fields: Fields): Open = {
    val peers = fields.objects("peers")
    Open(
      peers.map(peer =>
        ChunkPeer(
          peer.text("host"),
          peer.int("port", least = 1, most = 65535),
          peer.text("executor")
        )
      ),
      peers.map(peer => SpareMemory(peer.number("spare_host"), peer.number("spare_executor"))),
      peers.map(_.text("build")),
      fields.numbers("layers", least = 1, MostElements),
      BlockEncoding(fields.text("wire")),
      fields.nullable("density")(fields.amount),
      fields.flag("can_pull_ahead"),
      fields.flag("shared"),
      BatchingSettings(
        fields.text("batching"),
        fields.text("push_batching"),
        fields.int("profile_iterations", least = 1),
        fields.amount("replan_drift")
      ),
      fields.seconds("timeout", SessionSettings.MostSeconds.toDouble)
    )
  }

  private def computing(fields: Fields): ComputingTimes = ComputingTimes(
    fields.nullable("forward")(fields.amounts),
    fields.nullable("backward")(fields.amounts),
    fields.amount("update"),
    fields.nullable("seconds")(fields.amount)
  )

  private def report(fields: Fields): RankReport = {
    def direction(field: String): DirectionProfile = profile(fields.child(field))
    RankReport(
      fields.nullable("pull")(direction),
      fields.nullable("push")(direction),
      fields.nullable("seconds")(fields.amount)
    )
  }

  private def profile(fields: Fields): DirectionProfile = DirectionProfile(
    fields.amounts("compute"),
    fields.amount("startup"),
    fields.amount("per_byte"),
    fields.nullable("gap")(fields.amount),
    fields.amount("sum"),
    fields.amount("update")
  )

  private def version(fields: Fields): Long = fields.number("version", 0, MostVersions)

  private def batches(fields: Fields, field: String): IndexedSeq[Batch] =
    fields.pairs(field, least = 1, Int.MaxValue).map { case (first, last) => Batch(first, last) }
}
