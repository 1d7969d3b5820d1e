// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.nio.ByteBuffer
import java.nio.channels.ReadableByteChannel
import java.util.concurrent.{CompletableFuture, CountDownLatch, LinkedBlockingQueue, TimeUnit}
import java.util.concurrent.atomic.AtomicInteger

import scala.util.Random

import org.scalatest.BeforeAndAfterEach
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.network.buffer.NioManagedBuffer

import sparkdl.comm.transport.{
  Chunk,
  ChunkFailure,
  ChunkPeer,
  ChunkTarget,
  DirectChunkTarget,
  MessagePart
}

/** Tests of executors in one JVM that fetch from each other over loopback. */
class ChunkNodeSpec extends AnyFunSuite with BeforeAndAfterEach {
  import Nodes._

  private var nodes = Vector.empty[TestNode]

  private def start(
      transport: TestTransport = new TestTransport,
      partBytes: Int = Int.MaxValue
  ): TestNode = {
    val node = new TestNode(transport, partBytes = partBytes)
    nodes :+= node
    node
  }

  override def afterEach(): Unit = {
    nodes.foreach(_.node.close())
    nodes = Vector.empty
  }

  private def whole(name: String, length: Int): Chunk = Chunk(1, name, 0, length)

  // The first two count threads, and the network's threads take two seconds to end.
  test("close ends all fetches, and leaves neither threads nor sockets") {
    eventually("earlier tests' threads end")(threads.isEmpty)
    val before = sockets
    val Seq(client, server) = Seq.fill(2)(start())
    val half, resume = new CountDownLatch(1)
    server.transport.serve("stalls")(chunk => new StalledBuffer(random(chunk.length), half, resume))
    val fetched =
      Seq.fill(3)(new TestFetch(client.node, server.node.address, whole("stalls", 1000)))
    assert(half.await(30, TimeUnit.SECONDS) && threads.nonEmpty && sockets > before)
    client.node.close()
    fetched.foreach(fetch => assert(fetch.failure.get.isInstanceOf[ChunkFailure.Cancelled]))
    resume.countDown()
    server.node.close()
    eventually("threads end")(threads.isEmpty)
    eventually(s"sockets are closed, but there were $before and are $sockets")(sockets <= before)
    val late = new TestFetch(client.node, server.node.address, whole("stalls", 1000))
    assert(late.failure.get.isInstanceOf[ChunkFailure.Cancelled])
  }

  test("many chunks requested on several threads, also the network's, need no more threads") {
    eventually("earlier tests' threads end")(threads.isEmpty)
    val Seq(client, server) = Seq.fill(2)(start())
    val block = random(1 << 20)
    server.transport.put("block", block)
    val wrong = new AtomicInteger
    // Each chain requests its next chunk when one has arrived, on the network's thread.
    def chain(seed: Int, left: Int, done: CompletableFuture[Unit]): Unit = {
      val chunk =
        Chunk(1, "block", new Random(seed * 1000 + left).nextInt(1000000).toLong, 1 + left)
      var at = chunk.offset.toInt
      client.node.fetch(
        server.node.address,
        chunk,
        piece =>
          while (piece.hasRemaining) {
            if (piece.get() != block(at)) wrong.incrementAndGet(); at += 1
          },
        TestFetch.soon
      ) {
        case Some(failure) => done.completeExceptionally(failure)
        case None => if (left == 0) done.complete(()) else chain(seed, left - 1, done)
      }
    }
    val done = (0 until 40).map { seed =>
      val end = new CompletableFuture[Unit]
      new Thread(() => chain(seed, 100, end)).start()
      end
    }
    done.foreach(_.get(60, TimeUnit.SECONDS))
    assert(wrong.get === 0)
    assert(threads.count(_.contains("-client-")) <= 2 * nodes.size)
    assert(threads.count(_.contains("-server-")) <= 2 * nodes.size)
    assert(client.node.pending === 0)
  }

  test(
    "chunks of random sizes and places are fetched in parts, concurrently between three executors"
  ) {
    val executors = Vector(1000, 65536, Int.MaxValue).map(bytes => start(partBytes = bytes))
    for (seed <- 0 until 100) withClue(s"seed $seed: ") {
      val draw = new Random(seed)
      val block = random(1 + draw.nextInt(if (seed % 10 == 0) 3000000 else 50000), seed)
      executors.foreach(_.transport.put(s"block_$seed", block))
      val fetched = Vector.fill(20) {
        val offset = draw.nextInt(block.length)
        val length = 1 + draw.nextInt(block.length - offset)
        val Seq(to, from) = draw.shuffle(executors).take(2)
        val chunk = Chunk(1, s"block_$seed", offset, length)
        (
          new TestFetch(to.node, from.node.address, chunk, direct = draw.nextBoolean()),
          offset,
          length
        )
      }
      for ((fetch, offset, length) <- fetched)
        assert(fetch.bytes === block.slice(offset, offset + length).toSeq, s"$length at $offset")
    }
    assert(executors.map(_.node.pending) === Seq(0, 0, 0))
    eventually("nothing is being sent")(executors.forall(_.node.sending == 0))
  }

  for (secret <- Seq(None, Some("secret")))
    test(
      s"bytes are read into direct memory without a copy, with authentication: ${secret.isDefined}"
    ) {
      val Seq(client, server) = Seq.fill(2)(start(new TestTransport(secret)))
      val block = random(8 << 20)
      server.transport.put("block", block)
      val fetched =
        Seq.fill(5)(new TestFetch(
          client.node,
          server.node.address,
          whole("block", block.length),
          direct = true
        ))
      for (fetch <- fetched) {
        assert(fetch.bytes === block.toSeq)
        assert(fetch.readDirectly > block.length * 9 / 10)
      }
    }

  test(
    "a missing block, a shorter one, and one that is retired halfway fail only their own fetches"
  ) {
    val Seq(client, server) = Seq.fill(2)(start(partBytes = 400))
    server.transport.put("block", random(1000))
    server.transport.serve("gone") { chunk =>
      if (chunk.offset > 0) throw new IllegalArgumentException("it was retired")
      new NioManagedBuffer(ByteBuffer.allocate(chunk.length))
    }
    val chunks =
      Seq(whole("none", 10), whole("block", 1001), whole("gone", 1000), whole("block", 1000))
    val ways = chunks.map(new TestFetch(client.node, server.node.address, _))
    assert(
      ways.take(3).map(_.failure.get.getClass) === Seq.fill(3)(classOf[ChunkFailure.NotServed])
    )
    assert(ways(2).failure.get.getMessage.contains("it was retired") && ways(2).received === 400)
    assert(ways.last.bytes === random(1000).toSeq)
    assert(client.receiver.losses.isEmpty)
  }

  test("a locked block delays only its own chunks, until it is unlocked or the connection ends") {
    val Seq(client, server) = Seq.fill(2)(start(partBytes = 400))
    Seq("locked", "block").foreach(server.transport.put(_, random(1000)))
    def fetch(name: String): TestFetch =
      new TestFetch(client.node, server.node.address, whole(name, 1000))
    server.transport.locked = Set("locked")
    val delayed = fetch("locked")
    assert(fetch("block").bytes === random(1000).toSeq && !delayed.isOver)
    server.transport.locked = Set.empty
    assert(delayed.bytes === random(1000).toSeq)
    eventually("nothing is being sent")(server.node.sending == 0)
    server.transport.locked = Set("locked")
    fetch("locked")
    eventually("three parts wait")(server.node.sending == 3)
    client.node.close()
    eventually("nothing is being sent")(server.node.sending == 0)
  }

  test("a failing target ends only its own fetch") {
    val Seq(client, server) = Seq.fill(2)(start())
    val block = random(3000000)
    server.transport.put("block", block)
    val chunk = whole("block", block.length)
    object Full extends DirectChunkTarget {
      override def write(from: ByteBuffer): Unit = ()
      override def read(from: ReadableByteChannel, maxCount: Int): Int =
        throw new IllegalStateException("full")
    }
    val targets = Seq[ChunkTarget](_ => throw new IllegalStateException("full"), Full)
    val failed = targets.map { target =>
      val end = new CompletableFuture[Option[ChunkFailure]]
      client.node.fetch(server.node.address, chunk, target, TestFetch.soon)(end.complete(_))
      end
    }
    val other = new TestFetch(client.node, server.node.address, chunk)
    failed.map(_.get(30, TimeUnit.SECONDS).get).foreach {
      case failure: ChunkFailure.TargetFailed => assert(failure.getCause.getMessage === "full")
      case failure => fail(failure)
    }
    assert(other.bytes === block.toSeq)
  }

  test("a failing callback does not affect other fetches") {
    val Seq(client, server) = Seq.fill(2)(start())
    server.transport.put("block", random(1000))
    client.node.fetch(server.node.address, whole("block", 10), _ => (), TestFetch.soon)(_ =>
      throw new IllegalStateException
    )
    assert(new TestFetch(client.node, server.node.address, whole("block", 1000)).bytes === random(
      1000
    ).toSeq)
    assert(client.receiver.losses.isEmpty)
  }

  test("a fetch fails without a listener, and a later one succeeds with a listener") {
    val Seq(client, server) = Seq.fill(2)(start())
    val port = {
      val free = new java.net.ServerSocket(0, 1, java.net.InetAddress.getByName("127.0.0.1"))
      try free.getLocalPort
      finally free.close()
    }
    val nobody = ChunkPeer("127.0.0.1", port, "1")
    val fetched = new TestFetch(client.node, nobody, whole("block", 10))
    assert(fetched.failure.get.isInstanceOf[ChunkFailure.PeerLost])
    assert(client.receiver.next(client.receiver.losses) === nobody)
    server.transport.put("block", random(10))
    assert(
      new TestFetch(client.node, server.node.address, whole("block", 10)).bytes === random(10).toSeq
    )
  }

  test("a broken connection fails all its fetches, and the next fetch makes another connection") {
    val Seq(client, server) = Seq.fill(2)(start())
    val half, resume = new CountDownLatch(1)
    server.transport.serve("stalls")(chunk => new StalledBuffer(random(chunk.length), half, resume))
    server.transport.put("block", random(100000))
    val tap = new Tap(server.node.address)
    try {
      val chunks = whole("stalls", 100000) +: Seq.fill(5)(whole("block", 100000))
      val fetched = chunks.map(new TestFetch(client.node, tap.address, _))
      assert(half.await(30, TimeUnit.SECONDS))
      tap.cut()
      fetched.foreach(fetch => assert(fetch.failure.get.isInstanceOf[ChunkFailure.PeerLost]))
      resume.countDown()
      assert(client.receiver.next(client.receiver.losses) === tap.address)
      assert(new TestFetch(client.node, tap.address, whole("block", 100000)).bytes === random(
        100000
      ).toSeq)
      assert(tap.connections === 2 && client.receiver.losses.isEmpty && client.node.pending === 0)
      eventually("nothing is being sent")(server.node.sending == 0)
    } finally {
      resume.countDown()
      tap.close()
    }
  }

  private def arrives(from: TestNode, to: ChunkPeer): Boolean = {
    val arrived = new CompletableFuture[Boolean]
    from.node.send(to, Array[Byte](1))(time => arrived.complete(time.isDefined))
    arrived.get(30, TimeUnit.SECONDS)
  }

  for (silently <- Seq(false, true))
    test(s"a probe ends a connection that has died, and no other: silently $silently") {
      val settings = Seq("connectionTimeout" -> "5s", "connectionCreationTimeout" -> "30s")
      val keys = settings.map { case (key, value) => s"spark.sparkdl.io.$key" -> value }.toMap
      val Seq(client, server) = Seq.fill(2)(start(new TestTransport(settings = keys)))
      val tap = new Tap(server.node.address)
      def probe(): Unit =
        client.node.probe(Seq(tap.address, server.node.address)).get(30, TimeUnit.SECONDS)
      try {
        probe()
        assert(tap.connections === 0, "there is none to probe")
        assert(arrives(client, tap.address))
        probe()
        assert(tap.connections === 1 && client.receiver.losses.isEmpty)
        tap.forgetConnections(silently)
        probe()
        assert(client.receiver.next(client.receiver.losses) === tap.address)
        assert(arrives(client, tap.address))
        assert(tap.connections === 2 && client.receiver.losses.isEmpty)
      } finally tap.close()
    }

  test("an executor at the address of a vanished one has its own connection") {
    val Seq(client, gone, back) = Seq.fill(3)(start())
    val blocks = Seq(gone, back).zipWithIndex.map { case (node, seed) =>
      val block = random(1000, seed)
      node.transport.put("block", block)
      block.toSeq
    }
    val tap = new Tap(gone.node.address)
    val (before, after) = (tap.address, tap.address.copy(executor = "2"))
    def fetched(from: ChunkPeer): Seq[Byte] =
      new TestFetch(client.node, from, whole("block", 1000)).bytes
    try {
      assert(fetched(before) === blocks(0) && arrives(client, before))
      tap.replace(back.node.address)
      assert(fetched(after) === blocks(1))
      assert(!arrives(client, before))
      assert(client.receiver.next(client.receiver.losses) === before)
      assert(fetched(after) === blocks(1))
      assert(client.receiver.losses.isEmpty && tap.connections === 2)
    } finally tap.close()
  }

  test(
    "messages arrive complete and in order in both directions, also those sent before the" +
      " connection"
  ) {
    val Seq(one, other) = Seq.fill(2)(start())
    val messages = (0 until 1000).map(number => random(number % 97, number))
    messages.foreach(one.node.send(other.node.address, _)(_ => ()))
    other.node.send(one.node.address, random(1 << 20))(_ => ())
    messages.foreach(message =>
      assert(other.receiver.next(other.receiver.messages) === message.toSeq)
    )
    assert(one.receiver.next(one.receiver.messages) === random(1 << 20).toSeq)
    intercept[IllegalArgumentException](one.node.send(other.node.address, random((1 << 20) + 1))(
      _ => ()
    ))
    assert(one.receiver.losses.isEmpty && other.receiver.losses.isEmpty)
  }

  test("interleaved parts of random messages arrive as whole messages, each with its last part") {
    val Seq(one, other) = Seq.fill(2)(start())
    val draw = new Random(1)
    val left = Array.tabulate(100)(number =>
      MessagePart(number.toLong, random(1 + draw.nextInt(1 << 16), number), 0, 0)
    )
    var complete = Vector.empty[Seq[Byte]]
    def isComplete(part: MessagePart) = part.offset + part.length == part.message.length
    while (complete.size < left.length) {
      val number = draw.nextInt(left.length)
      if (!isComplete(left(number))) {
        val offset = left(number).offset + left(number).length
        val part = left(number).copy(
          offset = offset,
          length = 1 + draw.nextInt(left(number).message.length - offset)
        )
        left(number) = part
        one.node.send(other.node.address, part)(_ => ())
        if (isComplete(part)) complete :+= part.message.toSeq
      }
    }
    complete.foreach(message => assert(other.receiver.next(other.receiver.messages) === message))
    assert(one.receiver.losses.isEmpty && other.receiver.losses.isEmpty)
  }

  for (failure <- Seq(new IllegalStateException("broken"), new OutOfMemoryError("heap")))
    test(s"a message that the peer cannot handle ends its connection: $failure") {
      val Seq(one, other) = Seq.fill(2)(start())
      other.receiver.failure = Some(failure)
      val arrived = new CompletableFuture[Boolean]
      one.node.send(other.node.address, Array[Byte](1))(time => arrived.complete(time.isDefined))
      assert(!arrived.get(30, TimeUnit.SECONDS))
      assert(one.receiver.next(one.receiver.losses) === other.node.address)
    }

  test("a message is confirmed once the peer has it, and lost if the connection ends before") {
    val Seq(one, other) = Seq.fill(2)(start())
    val arrived = new LinkedBlockingQueue[Boolean]
    def sent(): Boolean = {
      one.node.send(other.node.address, Array[Byte](1))(time => arrived.put(time.isDefined))
      Option(arrived.poll(20, TimeUnit.SECONDS)).getOrElse(fail("neither confirmed nor lost"))
    }
    assert(sent() && sent())
    assert(other.receiver.messages.size === 2)
    other.node.close()
    assert(one.receiver.next(one.receiver.losses) === other.node.address)
    assert(!sent())
    one.node.close()
    assert(!sent())
  }
}
