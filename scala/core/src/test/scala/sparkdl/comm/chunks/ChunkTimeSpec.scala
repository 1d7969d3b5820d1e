// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.lang.ref.WeakReference
import java.util.concurrent.{CountDownLatch, TimeUnit}

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.network.TransportContext
import org.apache.spark.network.server.NoOpRpcHandler

import sparkdl.comm.ManualClock
import sparkdl.comm.transport.{Chunk, ChunkFailure, ChunkPeer}

/** Tests of stalled peers, deadlines and cancelled fetches. */
class ChunkTimeSpec extends AnyFunSuite {
  import Nodes._

  /**
   * Run `body` with a server that sends half of each chunk of `stalls`, and the rest after the
   * latch is counted down.
   */
  private def withStalled(body: (TestNode, TestNode, ManualClock, CountDownLatch) => Unit): Unit = {
    val clock = new ManualClock
    val client = new TestNode(clock = clock)
    val server = new TestNode()
    val half, resume = new CountDownLatch(1)
    server.transport.serve("stalls")(chunk => new StalledBuffer(random(chunk.length), half, resume))
    server.transport.put("block", random(1000))
    try body(client, server, clock, resume)
    finally {
      resume.countDown()
      Seq(client, server).foreach(_.node.close())
    }
  }

  private def seconds(count: Long): Long = TimeUnit.SECONDS.toNanos(count)

  test("the deadline ends a fetch from a stalled peer, and releases its memory") {
    withStalled { (client, server, clock, resume) =>
      var target = new Array[Byte](100000)
      val memory = new WeakReference(target)
      val stalled = into(client, server, target, seconds(10))
      val behind =
        new TestFetch(client.node, server.node.address, Chunk(1, "block", 0, 1000), seconds(20))
      eventually("half has come")(stalled.received == 50000)
      clock.advance(9)
      assert(stalled.failure.isEmpty && client.node.pending === 2)
      clock.advance(1)
      assert(stalled.failure.get.isInstanceOf[ChunkFailure.Deadline])
      assert(stalled.failure.get.getMessage.contains("50000 bytes of 100000"))
      assert(client.node.pending === 1)
      target = null
      eventually("the memory is free") {
        System.gc()
        memory.get == null
      }
      resume.countDown() // the peer was only slow
      assert(behind.bytes === random(1000).toSeq)
      assert(stalled.received === 50000)
    }
  }

  test("deadlines are kept, also one that is nearer than earlier ones") {
    withStalled { (client, server, clock, _) =>
      val chunk = Chunk(1, "stalls", 0, 10)
      val fetched =
        Seq(30, 10, 20).map(at =>
          new TestFetch(client.node, server.node.address, chunk, seconds(at.toLong))
        )
      for (passed <- Seq(Seq(1), Seq(1, 2), Seq(0, 1, 2))) {
        clock.advance(10)
        assert(fetched.indices.filter(fetched(_).isOver) === passed)
      }
    }
  }

  for (failure <- Seq(new IllegalStateException("broken"), new OutOfMemoryError("heap")))
    test(s"a callback that throws keeps no other fetch from its deadline: $failure") {
      val clock = new ManualClock
      val deadlines = new DeadlineTimer(clock)
      var ends = Vector.empty[Int]
      def fetch(number: Int, deadline: Long)(onEnd: => Unit): PendingFetch =
        new PendingFetch(
          ChunkPeer("there", 1, "1"),
          Chunk(1, "block", 0, 10),
          _ => (),
          seconds(deadline),
          deadlines,
          _ => {
            ends :+= number
            onEnd
          }
        )
      (1 to 2).foreach(fetch(_, 10)(throw failure))
      fetch(3, 20)(())
      clock.advance(10)
      assert(ends.sorted === Seq(1, 2) && deadlines.count === 1)
      clock.advance(10)
      assert(ends.last === 3 && deadlines.count === 0 && clock.pending === 0)
    }

  for (direct <- Seq(false, true))
    test(s"a cancelled fetch is over and gets no more bytes: direct $direct") {
      withStalled { (client, server, _, resume) =>
        val chunk = Chunk(1, "stalls", 0, 100000)
        val stalled = new TestFetch(client.node, server.node.address, chunk, seconds(10), direct)
        val behind =
          new TestFetch(client.node, server.node.address, Chunk(1, "block", 0, 1000), seconds(10))
        eventually("half has come")(stalled.received == 50000)
        stalled.fetch.cancel()
        assert(stalled.isOver && stalled.failure.get.isInstanceOf[ChunkFailure.Cancelled])
        resume.countDown()
        assert(behind.bytes === random(1000).toSeq)
        assert(stalled.received === 50000)
        behind.fetch.cancel()
        assert(behind.failure.isEmpty)
      }
    }

  test("a peer that reads nothing loses its connection, and the data for it is released") {
    val settings = "spark.sparkdl.io.connectionTimeout" -> "1s"
    val server = new TestNode(new TestTransport(settings = Map(settings)))
    val block = random(64 << 20)
    server.transport.put("block", block)
    val context =
      new TransportContext(new TestTransport().transportConf, new NoOpRpcHandler, false, true)
    val factory = context.createClientFactory()
    try {
      val peer = factory.createUnmanagedClient("127.0.0.1", server.node.address.port)
      peer.getChannel.config.setAutoRead(false)
      peer.send(Wire.hello(ChunkPeer("nobody", 1, "1")))
      peer.send(Wire.ask(1, Chunk(1, "block", 0, block.length)))
      eventually("it is being sent")(server.node.sending == 1)
      eventually("it is released")(server.node.sending == 0)
    } finally {
      factory.close()
      context.close()
      server.node.close()
    }
  }

  /** Fetch `stalls` into `target`. Only the fetch refers to `target`. */
  private def into(
      client: TestNode,
      server: TestNode,
      target: Array[Byte],
      deadline: Long
  ): Into = {
    val state = new Into
    client.node.fetch(
      server.node.address,
      Chunk(1, "stalls", 0, target.length),
      state.writer(target),
      deadline
    ) {
      end =>
        state.failure = end
    }
    state
  }

  private final class Into {
    @volatile var received = 0
    @volatile var failure = Option.empty[ChunkFailure]
    def writer(target: Array[Byte]): sparkdl.comm.transport.ChunkTarget = { bytes =>
      val count = bytes.remaining
      bytes.get(target, received, count)
      received += count
    }
  }
}
