// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bridge

import java.io.File
import java.net.{StandardProtocolFamily, UnixDomainSocketAddress}
import java.nio.ByteBuffer
import java.nio.channels.SocketChannel
import java.nio.file.Files
import java.util.Base64
import java.util.concurrent.{CountDownLatch, TimeUnit}

import scala.jdk.CollectionConverters._

import com.codahale.metrics.MetricRegistry
import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FSDataOutputStream, Path, RawLocalFileSystem}
import org.apache.hadoop.util.Progressable
import org.scalatest.BeforeAndAfterAll
import org.scalatest.concurrent.Eventually
import org.scalatest.funsuite.AnyFunSuite
import org.scalatest.time.{Seconds, Span}

import sparkdl.comm.CommConf
import sparkdl.comm.ps.PsNode
import sparkdl.comm.transport.{ExecutorEnvironment, InMemoryNetwork}

/** Tests with real sockets and an in-memory executor. */
class BridgeServerSpec extends AnyFunSuite with BeforeAndAfterAll with Eventually {
  implicit override val patienceConfig: PatienceConfig = PatienceConfig(timeout = Span(10, Seconds))
  private val directory = Files.createTempDirectory("executor")
  private val transport = new InMemoryNetwork().executor(1)
  private val environment = new ExecutorEnvironment {
    override def localDirectory: File = directory.toFile
    override val hadoopConf: Configuration = {
      val conf = new Configuration
      conf.set("fs.held.impl", classOf[BlockingFileSystem].getName)
      conf
    }
  }
  private val server =
    new BridgeServer(new PsNode(transport, CommConf(0, 1), new MetricRegistry), environment)

  override def afterAll(): Unit = server.close()

  private final class Client {
    private val mapper = new ObjectMapper
    private val channel = SocketChannel.open(StandardProtocolFamily.UNIX)
    private val advertised =
      mapper.readTree(directory.resolve(BridgeServer.AdvertisementName).toFile)
    channel.connect(UnixDomainSocketAddress.of(advertised.get("socket").asText))
    channel.write(ByteBuffer.wrap(Base64.getDecoder.decode(advertised.get("token").asText)))

    def send(request: String): Unit = Frames.write(channel, mapper.readTree(request))
    def answer(): JsonNode = Frames.read(channel).get
    def ask(request: String): JsonNode = {
      send(request)
      answer()
    }
    def close(): Unit = channel.close()
  }

  private val source = Files.writeString(directory.resolve("source"), "contents")

  private def put(remote: String): String =
    s"""{"op": "fs.put", "local": "$source", "remote": "$remote"}"""

  test("a connection without a rank can use files, and nothing else") {
    val client = new Client
    assert(client.ask(put(s"file:$directory/copy")).get("ok").asBoolean)
    val entries =
      client.ask(s"""{"op": "fs.list", "remote": "file:$directory"}""").get("entries").elements.asScala
    assert(entries.find(_.get("name").asText == "copy").map(_.get("length").asLong) === Some(8))
    val missing =
      client.ask(s"""{"op": "fs.get", "remote": "file:$directory/not", "local": "$directory/x"}""")
    assert(missing.get("error").asText === "File")
    assert(missing.get("message").asText.contains(s"file:$directory/not"))
    Seq(
      """{"op": "fs.delete", "remote": "file:/x"}""",
      """{"op": "pull", "version": 0}""",
      """{"op": "fs.chmod"}"""
    )
      .foreach(request => assert(client.ask(request).get("error").asText === "Protocol"))
    client.close()
  }

  /** Return the hello of rank 0. */
  private def hello(job: Int): String =
    s"""{"op": "hello", "protocol": ${BridgeConnection.Protocol}, "job": $job, "rank": 0}"""

  test("nothing listens for other executors until the first rank joins") {
    val (files, rank) = (new Client, new Client)
    assert(files.ask(s"""{"op": "fs.exists", "remote": "file:$directory"}""").get("ok").asBoolean)
    assert(transport.opened.get === 0)
    assert(rank.ask(hello(job = 7)).get("port").asInt === 1)
    assert(transport.opened.get === 1)
    assert(rank.ask("""{"op": "close"}""").get("ok").asBoolean)
    Seq(files, rank).foreach(_.close())
  }

  /** Return a request to open a session of two layers. */
  private def openRequest(peers: JsonNode*): String = {
    val request = Frames.newObject().put("op", "open").put("wire", "fp32").put("timeout", 5.0)
    request.putNull("density").put("can_pull_ahead", true).put("shared", true)
    request.put("batching", "ibatch").put("push_batching", "").put("profile_iterations", 5).put(
      "replan_drift",
      0.25
    )
    peers.foldLeft(request.putArray("peers"))(_.add(_))
    request.putArray("layers").add(100000).add(60000)
    request.toString
  }

  test("executors with different jars are refused, both named") {
    val rank = new Client
    val here = rank.ask(hello(job = 8))
    def open(otherBuild: String): JsonNode =
      rank.ask(openRequest(here, here.deepCopy[ObjectNode]().put("build", otherBuild)))
    val refused = open("0.0.9 (jar 123456789abc)")
    assert(refused.get("error").asText === "Plugin")
    assert(refused.get("peer").asInt === 1)
    Seq("rank 1", "0.0.9 (jar 123456789abc)", here.get("build").asText, "spark.jars")
      .foreach(part => assert(refused.get("message").asText.contains(part)))
    assert(open(here.get("build").asText).get("ok").asBoolean)
    rank.close()
  }

  test(
    "rank 0 asks for the next buckets, and for the outcome of the plan at the end of its session"
  ) {
    val rank = new Client
    val here = rank.ask(hello(job = 9))
    assert(rank.ask("""{"op": "replan", "reports": []}""").get("message").asText.contains(
      "open has to come first"
    ))
    val first = rank.ask(openRequest(here, here))
    assert(first.get("ahead").asBoolean)
    assert(Seq("pull", "push", "next_look").map(first.get(_).toString) === Seq(
      "[[1,2]]",
      "[[1,2]]",
      "6"
    ))
    val measured =
      rank.ask(
        """{"op": "measured", "forward": [0.5, 0.25], "backward": null, "update": 0, "seconds": 2}"""
      )
    assert(Seq("pull", "push").forall(measured.get(_).isNull), "nothing travelled yet")
    assert(measured.get("seconds").asDouble === 2)
    val direction =
      """{"compute": [0.5, 0.25], "startup": 0.001, "per_byte": 1e-6, "gap": null, "sum": 0, "update": 0}"""
    def replan(seconds: Double): Seq[String] = {
      val report = s"""{"pull": $direction, "push": $direction, "seconds": $seconds}"""
      val reply = rank.ask(s"""{"op": "replan", "reports": [$report, $report]}""")
      Seq("planned", "pull", "push", "next_look").map(reply.get(_).toString)
    }
    assert(replan(seconds = 2) === Seq("true", "[[1,1],[2,2]]", "[[2,2],[1,1]]", "11"))
    assert(replan(seconds = 1.5) === Seq("false", "[[1,1],[2,2]]", "[[2,2],[1,1]]", "61"))
    assert(rank.ask("""{"op": "close"}""").get("ok").asBoolean)
    val summary = rank.ask("""{"op": "batching"}""")
    assert(
      Seq("pull", "push").map(summary.get(_).get("outcome").asText).toSet === Set("tried, and used")
    )
    rank.close()
  }

  test("a posted request has no answer; its failure is the answer to the next other request") {
    val client = new Client
    val ask = s"""{"op": "fs.exists", "remote": "file:$directory"}"""
    client.send("""{"op": "push", "version": 0, "batch": 0}""")
    client.send("""{"op": "publish", "version": 1, "batch": 0}""")
    val failed = client.ask(ask)
    assert(failed.get("op").asText === "push")
    assert(failed.get("message").asText.contains("hello"))
    assert(client.ask(ask).get("exists").asBoolean)
    client.close()
  }

  test("a long copy does not delay another connection, and ends when its worker leaves") {
    val (copying, other) = (new Client, new Client)
    copying.send(put(s"held:$directory/held"))
    assert(BlockingFileSystem.created.await(10, TimeUnit.SECONDS))
    assert(
      other.ask(s"""{"op": "fs.exists", "remote": "file:$directory/held"}""").get("exists").asBoolean
    )
    copying.close()
    // Only `other` is still read: the bridge has noticed that the copy's worker left.
    eventually(assert(
      Thread.getAllStackTraces.keySet.asScala.count(_.getName == "sparkdl-bridge-worker") === 1
    ))
    BlockingFileSystem.released.countDown()
    eventually(assert(!Files.exists(directory.resolve("held"))))
    other.close()
  }
}

/** File system whose files are created, but take no byte until they are released. */
class BlockingFileSystem extends RawLocalFileSystem {
  override def getUri: java.net.URI = java.net.URI.create("held:///")
  override def getScheme: String = "held"
  override def create(
      path: Path,
      overwrite: Boolean,
      bufferSize: Int,
      replication: Short,
      blockSize: Long,
      progress: Progressable
  ): FSDataOutputStream = {
    val made = super.create(path, overwrite, bufferSize, replication, blockSize, progress)
    BlockingFileSystem.created.countDown()
    BlockingFileSystem.released.await(10, TimeUnit.SECONDS)
    made
  }
}

object BlockingFileSystem {
  val created = new CountDownLatch(1)
  val released = new CountDownLatch(1)
}
