package sparkdl.comm.bench

import java.nio.ByteBuffer
import java.util.concurrent.{CompletableFuture, LinkedBlockingQueue, TimeUnit}

import scala.util.Random

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.{BarrierTaskContext, SparkContext, SparkEnv, SparkdlExecutor}
import org.apache.spark.storage.PlainFetch

import sparkdl.comm.ps.Notice
import sparkdl.comm.transport.{BlockServer, BlockSink, ControlPeer, ControlReceiver}

/**
 * What it costs to bring a block from one executor to another, for python/bench_fetch.py: rank 0 measures, the others serve.
 * The driver calls it; nothing that a Python worker's bridge answers leads here.
 */
object FetchBench {

  /**
   * @param sizes bytes of the blocks, separated by commas
   * @param repeats samples of each; as many runs before do not count
   * @return a JSON array of {way, servers, bytes, seconds: [...], verified}
   */
  def run(context: SparkContext, executors: Int, sizes: String, repeats: Int): String = {
    val blocks = sizes.split(",").toIndexedSeq.map(_.toInt)
    val rows = context
      .parallelize(0 until executors, executors)
      .barrier()
      .mapPartitions(_ => new FetchBench(BarrierTaskContext.get(), blocks, repeats).rows.iterator)
      .collect()
    rows.mkString("[", ",", "]")
  }

  private val Job = 1L << 61
  private val WaitSeconds = 60L

  /** A way to bring `bytes` from each of `servers`: `run` returns when they are here, and gives what checks them. */
  private final case class Way(name: String, servers: Int, bytes: Int)(val run: () => () => Boolean)

  private final class Target(expected: ByteBuffer) extends BlockSink {
    private val memory = ByteBuffer.allocateDirect(expected.remaining)
    override val maxBytes: Long = expected.remaining
    override def restart(): Unit = memory.clear()
    override def write(from: ByteBuffer): Unit = memory.put(from)
    def isRight: Boolean = memory.flip().equals(expected)
  }

  /** Sends notices back as they are, or keeps them. */
  private final class Echo(back: Boolean) extends ControlReceiver {
    val kept = new LinkedBlockingQueue[Notice]
    @volatile var peer: ControlPeer = _
    override def received(message: Any): Unit = message match {
      case notice: Notice => if (back) peer.send(notice) else kept.put(notice)
    }
    override def disconnected(host: String, port: Int): Unit = ()
  }
}

private final class FetchBench(task: BarrierTaskContext, sizes: IndexedSeq[Int], repeats: Int) {
  import FetchBench._

  private val rank = task.partitionId()
  private val executor = new SparkdlExecutor(SparkEnv.get.conf)
  private val blocks = executor.blocks

  def rows: Seq[String] = {
    sizes.foreach(bytes => blocks.put(Job, name(bytes), Array(direct(contents(rank, bytes)))))
    val echo = new Echo(back = rank != 0)
    val control = executor.openControl(0, 1, echo)
    try {
      val here = blocks.here
      val address = Seq(here.host, here.port, here.executorId, executor.host, control.port).mkString(" ")
      val addresses = task.allGather(address).toIndexedSeq.map(_.split(" "))
      val Array(_, _, _, host, port) = addresses(if (rank == 0) 1 else 0)
      echo.peer = control.connect(host, port.toInt)
      task.barrier()
      val servers = addresses.tail.map { case Array(host, port, id, _*) => BlockServer(host, port.toInt, id) }
      val found = if (rank == 0) notices(echo) ++ sizes.flatMap(fetches(servers, _)) else Nil
      task.barrier()
      found
    } finally {
      control.close()
      val end = System.nanoTime + TimeUnit.SECONDS.toNanos(WaitSeconds)
      sizes.foreach(bytes => blocks.retire(Job, name(bytes), () => System.nanoTime >= end))
    }
  }

  /** There and back again. */
  private def notices(echo: Echo): Seq[String] =
    (0 +: sizes.filter(_ <= 16 * blocks.inlineThreshold)).flatMap { bytes =>
      val sent = Notice(Job, 1, 0, Notice.Parameters, 0, 0, contents(0, bytes))
      measure(Way("notice", 1, bytes) { () =>
        echo.peer.send(sent)
        val received = echo.kept.poll(WaitSeconds, TimeUnit.SECONDS)
        () => java.util.Arrays.equals(received.bytes, sent.bytes)
      })
    }

  private def fetches(servers: Seq[BlockServer], bytes: Int): Seq[String] = {
    val expected = servers.indices.map(server => ByteBuffer.wrap(contents(server + 1, bytes)))
    val targets = expected.map(new Target(_))
    def start(server: Int): CompletableFuture[Void] = blocks.fetch(servers(server), Job, name(bytes), targets(server))
    def await(fetch: CompletableFuture[Void]): Unit = fetch.get(WaitSeconds, TimeUnit.SECONDS)
    def allRight(): Boolean = targets.forall(_.isRight)
    val one = Seq(
      Way("fetchBlockSync", 1, bytes) { () =>
        val data = PlainFetch(servers.head, Job, name(bytes))
        () => data.equals(expected.head)
      },
      Way("fetch", 1, bytes) { () =>
        await(start(0))
        () => targets.head.isRight
      }
    )
    val several = Seq(
      Way("in turn", servers.size, bytes) { () =>
        servers.indices.foreach(server => await(start(server)))
        allRight _
      },
      Way("at once", servers.size, bytes) { () =>
        servers.indices.map(start).foreach(await)
        allRight _
      }
    )
    measure(one ++ (if (servers.size > 1) several else Nil): _*)
  }

  /** All ways in turn, so that a disturbance hits them alike. */
  private def measure(ways: Way*): Seq[String] = {
    val seconds = ways.map(_ => Array.newBuilder[Double])
    val right = Array.fill(ways.size)(true)
    for (repeat <- 0 until 2 * repeats; (way, index) <- ways.zipWithIndex) {
      val begin = System.nanoTime
      val check = way.run()
      val taken = (System.nanoTime - begin) / 1e9
      right(index) &= check()
      if (repeat >= repeats) seconds(index) += taken
    }
    ways.indices.map(index => row(ways(index), seconds(index).result(), right(index)))
  }

  private def row(way: Way, seconds: Array[Double], verified: Boolean): String = {
    val mapper = new ObjectMapper
    val row = mapper.createObjectNode()
    row.put("way", way.name).put("servers", way.servers).put("bytes", way.bytes).put("verified", verified)
    row.set[ObjectNode]("seconds", mapper.valueToTree[JsonNode](seconds)).toString
  }

  private def name(bytes: Int): String = s"sparkdl_bench_$bytes"

  private def contents(rank: Int, bytes: Int): Array[Byte] = {
    val values = new Array[Byte](bytes)
    new Random(rank).nextBytes(values)
    values
  }

  private def direct(bytes: Array[Byte]): ByteBuffer = ByteBuffer.allocateDirect(bytes.length).put(bytes).flip()
}
