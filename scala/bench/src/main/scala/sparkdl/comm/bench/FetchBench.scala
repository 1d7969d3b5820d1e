// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bench

import java.nio.ByteBuffer
import java.nio.channels.ReadableByteChannel
import java.util.concurrent.{LinkedBlockingQueue, TimeUnit}

import scala.util.Random

import org.apache.spark.{BarrierTaskContext, SparkContext, SparkEnv, SparkdlExecutor}
import org.apache.spark.storage.{PlainFetch, PlainServer}

import sparkdl.comm.SystemClock
import sparkdl.comm.flow.{
  BlockTarget,
  Fetch,
  Fetcher,
  FixedWindows,
  RemoteBlock,
  ScheduledSends,
  Urgency
}
import sparkdl.comm.ps.{BenchMemory, Notice}
import sparkdl.comm.transport.{
  ChunkAnswer,
  ChunkNetwork,
  ChunkPeer,
  DirectChunkTarget,
  PeerMessageReceiver
}

/**
 * Benchmark of fetching a block from another executor, and of converting it, for
 * python/benchmarks/fetch. Rank 0 measures and the other ranks serve. The driver calls it; no
 * request of a Python worker's bridge leads here.
 */
object FetchBench {

  /**
   * Measure how long rank 0 takes to fetch blocks from the other ranks, by several methods.
   *
   * @param sizes bytes of the blocks, separated by commas
   * @param windows bytes of fixed windows, separated by commas. If there are any, rank 0 fetches a
   *    block from every server at once, with the adaptive window and with each fixed one. If there
   *    are none, it fetches by all other methods of python/benchmarks/fetch/run.py, such as
   *    `notice`
   * @param repeats samples of each method, after as many runs that do not count
   * @return a JSON array of {way, servers, bytes, seconds: [...], verified}. `way` is the method
   */
  def run(
      context: SparkContext,
      executors: Int,
      sizes: String,
      windows: String,
      repeats: Int
  ): String = {
    val blocks = sizes.split(",").toIndexedSeq.map(_.toInt)
    val fixed = windows.split(",").toIndexedSeq.filter(_.nonEmpty).map(_.toLong)
    val rows = context
      .parallelize(0 until executors, executors)
      .barrier()
      .mapPartitions(_ =>
        new FetchBench(BarrierTaskContext.get(), blocks, fixed, repeats).rows.iterator
      )
      .collect()
    rows.mkString("[", ",", "]")
  }

  private val Job = 1L << 61
  private val WaitSeconds = 60L

  /** Relative error of bfloat16; float16 has less. */
  private val HalfError = 1.0 / 256
  private val Zeros = new Array[Byte](1 << 16)

  private final class Target(expected: ByteBuffer) extends BlockTarget {
    private val memory = ByteBuffer.allocateDirect(expected.remaining)

    override def part(offset: Long, length: Int): DirectChunkTarget =
      new Part(memory.slice(offset.toInt, length))

    /**
     * Return true if the memory has the expected bytes, and clear the memory. So the next transfer
     * method cannot pass by bytes that an earlier one left.
     */
    def isExpected: Boolean = {
      val right = memory.clear().equals(expected)
      while (memory.hasRemaining) memory.put(Zeros, 0, math.min(Zeros.length, memory.remaining))
      memory.clear()
      right
    }
  }

  private final class Part(memory: ByteBuffer) extends DirectChunkTarget {
    override def write(from: ByteBuffer): Unit = memory.put(from)
    override def read(from: ReadableByteChannel, maxCount: Int): Int = {
      memory.limit(math.min(memory.capacity, memory.position() + maxCount))
      try from.read(memory)
      finally memory.limit(memory.capacity)
    }
  }

  /**
   * Addresses of a rank: of Spark's block transfer, of its chunks, and of its memory for each size.
   */
  private final case class Server(plain: PlainServer, chunks: ChunkPeer, memory: IndexedSeq[String])

  /**
   * Receiver that serves blocks, and echoes messages or keeps them.
   *
   * @param back true to echo messages; false to keep notices and drop other messages
   * @param windows bytes of the fixed windows to compare; the adaptive window is added
   */
  private final class Echo(back: Boolean, windows: Seq[Long]) extends PeerMessageReceiver {
    val notices = new LinkedBlockingQueue[Notice]
    @volatile var network: ChunkNetwork = _
    @volatile var peer: ChunkPeer = _

    /** Senders with the adaptive window, and with each fixed one. */
    private lazy val sends = new ScheduledSends(network, SystemClock, onPeerLost) +:
      windows.map(bytes =>
        new ScheduledSends(network, SystemClock, onPeerLost, FixedWindows.scheduler(bytes))
      ).toIndexedSeq
    override def onRequest(answer: ChunkAnswer): Unit =
      sends(answer.chunk.block.split('_').last.toInt).answer(answer, Urgency(0, 0), 0)
    override def onMessage(message: ByteBuffer): Unit = {
      val bytes = new Array[Byte](message.remaining)
      message.get(bytes)
      if (back) network.send(peer, bytes)(_ => ())
      else Notice.decode(ByteBuffer.wrap(bytes)).foreach(notices.put)
    }
    override def onPeerLost(peer: ChunkPeer): Unit = ()
  }
}

private final class FetchBench(
    task: BarrierTaskContext,
    sizes: IndexedSeq[Int],
    windows: IndexedSeq[Long],
    repeats: Int
) {
  import FetchBench._

  private val rank = task.partitionId()
  private val executor = new SparkdlExecutor(SparkEnv.get.conf)
  private val blocks = executor.blocks

  def rows: Seq[String] = {
    val names = sizes.flatMap(bytes => (0 to windows.size).map(bytes -> name(bytes, _)))
    names.foreach { case (bytes, name) =>
      blocks.put(Job, name, Array(direct(contents(rank, bytes))))
    }
    val echo = new Echo(back = rank != 0, windows)
    val network = executor.openNetwork(0, 1, echo)
    val memory = sizes.map(bytes => new BenchMemory(BenchMemory.draw(bytes / 4, seed = rank)))
    try {
      val (plain, chunks) = (PlainFetch.address, network.address)
      val paths = memory.map(_.path)
      val address = (Seq(
        plain.host,
        plain.port,
        plain.executorId,
        chunks.host,
        chunks.port
      ) ++ paths).mkString(" ")
      val servers =
        task.allGather(address).toIndexedSeq.map(_.split(" ")).map {
          case Array(host, port, id, ours, own, paths @ _*) =>
            Server(
              PlainServer(host, port.toInt, id),
              ChunkPeer(ours, own.toInt, id),
              paths.toIndexedSeq
            )
        }
      echo.network = network
      echo.peer = servers(if (rank == 0) 1 else 0).chunks
      task.barrier()
      val found = if (rank != 0) Nil else measured(servers, network, echo, memory)
      task.barrier()
      found
    } finally {
      network.close()
      memory.foreach(_.close())
      val end = System.nanoTime + TimeUnit.SECONDS.toNanos(WaitSeconds)
      names.foreach { case (_, name) => blocks.retire(Job, name, () => System.nanoTime >= end) }
    }
  }

  private def measured(
      servers: IndexedSeq[Server],
      network: ChunkNetwork,
      echo: Echo,
      memory: IndexedSeq[BenchMemory]
  ): Seq[String] = {
    val fetching = new Fetcher(network, SystemClock)
    if (windows.nonEmpty) {
      val ways = "own" +: windows.map(bytes => s"fixed $bytes")
      sizes.flatMap { bytes =>
        val blocks = new Remote(servers.tail, bytes, fetching)
        Timing.measure(
          repeats,
          ways.zipWithIndex.map { case (name, window) => blocks.atOnce(name, window) }
        )
      }
    } else
      notices(echo) ++ sizes.flatMap(fetches(servers.tail, fetching, _)) ++
        sizes.indices.flatMap(size => inMemory(memory(size), servers(1).memory(size), sizes(size)))
  }

  /** Measure a notice that goes there and back. */
  private def notices(echo: Echo): Seq[String] =
    (0 +: sizes.filter(_ <= blocks.inlineThreshold)).flatMap { bytes =>
      val sent =
        Notice(
          Job,
          1,
          0,
          Notice.Parameters,
          0,
          0,
          math.max(1, bytes).toLong,
          ByteBuffer.wrap(contents(0, bytes))
        )
      val there = Way("notice", 1, bytes) { () =>
        echo.network.send(echo.peer, sent.encode)(_ => ())
        val received = echo.notices.poll(WaitSeconds, TimeUnit.SECONDS)
        () => received == sent
      }
      Timing.measure(repeats, Seq(there))
    }

  /** Blocks of so many bytes, one on each server. */
  private final class Remote(servers: Seq[Server], bytes: Int, fetching: Fetcher) {
    val expected = servers.indices.map(server => ByteBuffer.wrap(contents(server + 1, bytes)))
    val targets = expected.map(new Target(_))

    /**
     * Begin to fetch a block.
     *
     * @param window index of the window with which it is served; 0 is the adaptive one
     */
    def start(server: Int, window: Int = 0): Fetch = {
      val block = RemoteBlock(servers(server).chunks, Job, name(bytes, window), bytes.toLong)
      fetching.fetch(block, TimeUnit.SECONDS.toNanos(WaitSeconds), targets(server))
    }
    def await(fetch: Fetch): Unit = fetch.done.get(WaitSeconds, TimeUnit.SECONDS)
    def allExpected(): Boolean = targets.map(_.isExpected).forall(identity)

    def atOnce(name: String, window: Int = 0): Way = Way(name, servers.size, bytes) { () =>
      servers.indices.map(start(_, window)).foreach(await)
      allExpected _
    }
  }

  private def fetches(servers: Seq[Server], fetching: Fetcher, bytes: Int): Seq[String] = {
    val blocks = new Remote(servers, bytes, fetching)
    import blocks.{allExpected, await, expected, start, targets}
    val one = Seq(
      Way("fetchBlockSync", 1, bytes) { () =>
        val data = PlainFetch(servers.head.plain, Job, name(bytes, 0))
        () => data.equals(expected.head)
      },
      Way("fetch", 1, bytes) { () =>
        await(start(0))
        () => targets.head.isExpected
      }
    )
    val several = Seq(
      Way("in turn", servers.size, bytes) { () =>
        servers.indices.foreach(server => await(start(server)))
        allExpected _
      },
      blocks.atOnce("at once")
    )
    Timing.measure(repeats, one ++ (if (servers.size > 1) several else Nil))
  }

  /**
   * Measure what needs no network: copying a block from the memory of rank 1, on this host, and
   * conversions.
   */
  private def inMemory(own: BenchMemory, path: String, bytes: Int): Seq[String] = {
    val count = bytes / 4
    val (mine, theirs) = (BenchMemory.draw(count, seed = 0), BenchMemory.draw(count, seed = 1))
    val neighbor = BenchMemory.neighbor(path, count)
    def way(name: String, copies: Array[Float], within: Double)(run: => Unit): Way =
      Way(name, 1, bytes) { () =>
        run
        () => own.isCopyOf(copies, within)
      }
    def encode(wire: String): Way = Way(s"$wire encode", 1, bytes) { () =>
      own.encode(wire)
      () => true // decoding checks it
    }
    val copies = Seq(
      way("memcpy", mine, within = 0)(own.copy()),
      way("same host", theirs, within = 0)(own.copyFrom(neighbor))
    )
    val conversions = Seq("bf16", "fp16").flatMap { wire =>
      Seq(encode(wire), way(s"$wire decode", mine, HalfError)(own.decode(wire)))
    }
    try Timing.measure(repeats, copies ++ conversions)
    finally neighbor.close()
  }

  private def name(bytes: Int, window: Int): String = s"sparkdl_bench_${bytes}_$window"

  private def contents(rank: Int, bytes: Int): Array[Byte] = {
    val values = new Array[Byte](bytes)
    new Random(rank).nextBytes(values)
    values
  }

  private def direct(bytes: Array[Byte]): ByteBuffer =
    ByteBuffer.allocateDirect(bytes.length).put(bytes).flip()
}
