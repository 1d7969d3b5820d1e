// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bridge

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ObjectNode
import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.{CommException, Golden, SpareMemory}
import sparkdl.comm.bridge.BridgeRequest._
import sparkdl.comm.ibatch.{
  Batch,
  BatchingSettings,
  ComputingTimes,
  DirectionProfile,
  Policy,
  RankReport
}
import sparkdl.comm.ps.Bf16
import sparkdl.comm.transport.ChunkPeer

class BridgeRequestSpec extends AnyFunSuite {
  private val mapper = new ObjectMapper
  private val golden: Map[String, JsonNode] =
    mapper.readTree(Golden.bytes("bridge/operations.json")).elements.asScala.map { row =>
      row.get("request").get("op").asText -> row
    }.toMap
  private def request(name: String): JsonNode = golden(name).get("request")

  private val (pull, push) =
    (IndexedSeq(Batch(1, 2), Batch(3, 3)), IndexedSeq(Batch(3, 3), Batch(1, 2)))
  private val peer = ChunkPeer("a.example", 40000, "3")
  private val profile = DirectionProfile(IndexedSeq(0.5, 0.25, 0), 0.001, 1e-9, None, 0.125, 0)
  private val expected: Map[String, BridgeRequest] = Map(
    "hello" -> Hello(13, 2305843009213693953L, 1),
    "open" -> Open(
      IndexedSeq(peer),
      IndexedSeq(SpareMemory(8L << 30, Long.MaxValue)),
      IndexedSeq("0.1.0 (jar 0123456789ab)"),
      IndexedSeq(800, 32, 7),
      Bf16,
      density = Some(0.01),
      canPullAhead = true,
      sharesMemory = true,
      BatchingSettings(
        Policy.Paper,
        Policy.Fixed(4096),
        profileIterations = 10,
        replanDrift = 0.25
      ),
      timeoutSeconds = 60.5
    ),
    "attach" -> Attach("/proc/1/fd/3"),
    "measured" -> Measured(ComputingTimes(Some(IndexedSeq(0.5, 0.25, 0)), None, 0.125, Some(0.5))),
    "replan" -> Replan(IndexedSeq(RankReport(Some(profile), None, Some(0.5)))),
    "batching" -> ReportBatching,
    "cut" -> Cut(pull, push),
    "publish" -> Publish(8, 2),
    "prefetch" -> Prefetch(8),
    "pull" -> Pull(7, 1),
    "push" -> Push(7, 0),
    "collect" -> Collect(7, 0),
    "close" -> Close,
    "fs.put" -> PutFile("/tmp/a", "hdfs://b/c"),
    "fs.get" -> GetFile("hdfs://b/c", "/tmp/a"),
    "fs.list" -> ListFiles("hdfs://b"),
    "fs.rename" -> RenameFile("hdfs://b/c", "hdfs://b/d"),
    "fs.delete" -> DeleteFile("hdfs://b", recursive = true),
    "fs.exists" -> FileExists("hdfs://b")
  )

  test("each operation is parsed as Python sends it, and both sides post the same operations") {
    assert(BridgeRequest.names === golden.keySet)
    assert(golden.map { case (name, row) =>
      name -> BridgeRequest.parse(row.get("request"))
    } === expected)
    golden.foreach { case (name, row) =>
      assert(BridgeRequest.isPosted(name) === row.get("posted").asBoolean, name)
      assert(expected(name).isInstanceOf[PostedRequest] === row.get("posted").asBoolean, name)
    }
  }

  test("no field may be missing") {
    for ((name, row) <- golden; field <- row.get("request").fieldNames.asScala if field != "op") {
      val without = row.get("request").deepCopy[ObjectNode]()
      without.remove(field)
      val error = intercept[CommException](BridgeRequest.parse(without))
      assert(
        error.kind === CommException.Protocol && error.getMessage.contains(s"field $field"),
        name
      )
    }
  }

  private val wrong = Seq(
    ("pull", "version", "-1"),
    ("pull", "version", "2147483648"),
    ("pull", "version", "99999999999999999999"),
    ("pull", "batch", "4294967296"),
    ("pull", "batch", "0.5"),
    ("hello", "rank", "-1"),
    ("open", "layers", "[5, 0]"),
    ("open", "layers", """["5"]"""),
    ("open", "density", "-0.5"),
    ("open", "profile_iterations", "0"),
    ("replan", "reports", "7"),
    ("open", "timeout", "0"),
    ("open", "timeout", "1e300"),
    ("open", "peers", "[7]"),
    ("cut", "pull", "[[1]]"),
    ("cut", "pull", "[[0, 1]]"),
    ("cut", "push", "[[1, 2, 3]]")
  )

  wrong.foreach { case (name, field, value) =>
    test(s"$field $value of $name is refused") {
      val changed = request(name).deepCopy[ObjectNode]()
      changed.set[JsonNode](field, mapper.readTree(value))
      val error = intercept[CommException](BridgeRequest.parse(changed))
      assert(error.kind === CommException.Protocol && error.getMessage.contains(s"field $field"))
    }
  }

  private val untrue = Seq(
    "compute" -> "[0.5, -1]",
    "compute" -> """["0.5"]""",
    "startup" -> "1e999",
    "gap" -> "-1",
    "sum" -> "null"
  )

  untrue.foreach { case (field, value) =>
    test(s"$field $value of a rank's report is refused") {
      val changed = request("replan").deepCopy[ObjectNode]()
      changed.at("/reports/0/pull").asInstanceOf[ObjectNode].set[JsonNode](
        field,
        mapper.readTree(value)
      )
      val error = intercept[CommException](BridgeRequest.parse(changed))
      assert(error.kind === CommException.Protocol && error.getMessage.contains(s"field $field"))
    }
  }

  test("the error for an unknown operation says what to do") {
    val unknown = mapper.readTree("""{"op": "fs.chmod"}""")
    assert(!BridgeRequest.isPosted("fs.chmod"))
    assert(intercept[CommException](BridgeRequest.parse(unknown)).getMessage.contains(
      "fs.chmod: install"
    ))
  }
}
