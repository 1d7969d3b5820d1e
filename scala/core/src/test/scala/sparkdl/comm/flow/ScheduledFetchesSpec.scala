package sparkdl.comm.flow

import java.nio.ByteBuffer
import java.util.concurrent.{ExecutionException, Executors, TimeUnit}

import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.{ManualClock, SystemClock}
import sparkdl.comm.transport.{Chunk, ChunkFailure, ChunkFetch, ChunkPeer, ChunkTarget, Chunks}

class ScheduledFetchesSpec extends AnyFunSuite {
  private val Kibi = 1024
  private val server = ChunkPeer("there", 1)

  /** A chunk that was asked for, and what is to become of it. */
  private final class Asked(val chunk: Chunk, into: ChunkTarget, val deadline: Long, done: Option[ChunkFailure] => Unit)
      extends ChunkFetch {
    var cancelled = false
    def arrive(bytes: Array[Byte]): Unit = {
      into.write(ByteBuffer.wrap(bytes, chunk.offset.toInt, chunk.length))
      done(None)
    }
    def fail(cause: ChunkFailure): Unit = done(Some(cause))
    override def cancel(): Unit = {
      cancelled = true
      done(Some(new ChunkFailure.Cancelled("cancelled")))
    }
  }

  private final class Held extends Chunks {
    var asked = Vector.empty[Asked]
    override def fetch(from: ChunkPeer, chunk: Chunk, into: ChunkTarget, deadline: Long)(
        done: Option[ChunkFailure] => Unit
    ): ChunkFetch = {
      asked :+= new Asked(chunk, into, deadline, done)
      asked.last
    }

    /** All that is asked for arrives, and what is asked for then. */
    def serve(bytes: String => Array[Byte]): Unit = while (asked.nonEmpty) {
      val next = asked.head
      asked = asked.tail
      next.arrive(bytes(next.chunk.block))
    }
  }

  private final class Memory(bytes: Int) extends BlockTarget {
    val memory = new Array[Byte](bytes)
    override def part(offset: Long, length: Int): ChunkTarget = {
      val rest = ByteBuffer.wrap(memory, offset.toInt, length)
      from => rest.put(from)
    }
  }

  private def random(bytes: Int): Array[Byte] = {
    val values = new Array[Byte](bytes)
    new Random(bytes).nextBytes(values)
    values
  }

  private def block(name: String, bytes: Int): RemoteBlock = RemoteBlock(server, 7, name, bytes.toLong)

  test("a block comes in chunks, each where it belongs, and is done with the last one") {
    val (held, clock) = (new Held, new ManualClock)
    val fetches = new ScheduledFetches(held, clock)
    val (bytes, target) = (random(1000 * Kibi), new Memory(1000 * Kibi))
    clock.advance(3)
    val fetch = fetches.fetch(block("large", bytes.length), Urgency(0, 0), 0, patience = 5, target)
    assert(fetch.askedNanos === TimeUnit.SECONDS.toNanos(3))
    assert(held.asked.head.deadline === TimeUnit.SECONDS.toNanos(3) + 5)
    assert(!fetch.done.isDone && fetches.pending === 1)
    held.serve(_ => bytes)
    assert(fetch.done.isDone && fetches.pending === 0)
    assert(target.memory === bytes)
  }

  test("an urgent block overtakes a large one that is half here") {
    val held = new Held
    val fetches = new ScheduledFetches(held, new ManualClock)
    val bytes = Map("large" -> random(10000 * Kibi), "urgent" -> random(100 * Kibi))
    def fetch(name: String, urgency: Urgency): ScheduledFetch =
      fetches.fetch(block(name, bytes(name).length), urgency, 0, 1, new Memory(bytes(name).length))
    val large = fetch("large", Urgency(2, 0))
    val urgent = fetch("urgent", Urgency(1, 0))
    var arrived = Vector.empty[ScheduledFetch]
    Seq(large, urgent).foreach(fetch => fetch.done.thenRun(() => arrived :+= fetch))
    held.serve(bytes)
    assert(arrived === Seq(urgent, large))
  }

  test("a chunk that fails ends its block, with the cause, and no other one") {
    val held = new Held
    val fetches = new ScheduledFetches(held, new ManualClock)
    val bytes = random(500 * Kibi)
    val Seq(bad, good) = Seq("bad", "good").map { name =>
      fetches.fetch(block(name, bytes.length), Urgency(0, 0), 0, 1, new Memory(bytes.length))
    }
    held.asked.find(_.chunk.block == "bad").get.fail(new ChunkFailure.NotServed("not here"))
    assert(intercept[ExecutionException](bad.done.get()).getCause.getMessage === "not here")
    held.asked = held.asked.filter(_.chunk.block == "good")
    held.serve(_ => bytes)
    assert(good.done.get() === null && fetches.pending === 0)
  }

  test("a block that is cancelled asks for nothing more, and what is on its way is cancelled too") {
    val held = new Held
    val fetches = new ScheduledFetches(held, new ManualClock)
    val fetch = fetches.fetch(block("large", 1000 * Kibi), Urgency(0, 0), 0, 1, new Memory(1000 * Kibi))
    val asked = held.asked.size
    fetches.cancel(fetch)
    assert(held.asked.forall(_.cancelled) && held.asked.size === asked)
    assert(intercept[ExecutionException](fetch.done.get()).getCause.isInstanceOf[ChunkFailure.Cancelled])
    fetches.cancel(fetch) // twice is as once
    assert(fetches.pending === 0)
  }

  test("a sender that stands still holds up no other") {
    val (held, clock) = (new Held, new ManualClock)
    val fetches = new ScheduledFetches(held, clock)
    val bytes = random(3000 * Kibi)
    def fetch(name: String, port: Int): ScheduledFetch = fetches.fetch(
      RemoteBlock(ChunkPeer("there", port), 7, name, bytes.length.toLong),
      Urgency(0, 0),
      0,
      1,
      new Memory(bytes.length)
    )
    fetch("silent", 1)
    val other = fetch("other", 2)
    held.asked = held.asked.filter(_.chunk.block == "other")
    clock.advance(60) // the scheduler's own time to look
    held.asked = held.asked.filter(_.chunk.block == "other")
    held.serve(_ => bytes)
    assert(other.done.isDone && fetches.pending === 1)
  }

  test("a wake-up of which an earlier one took the place has no successor") {
    var seconds = 10L
    val window = new Window {
      override def bytes: Long = Long.MaxValue
      override def held(): Unit = ()
      override def wakeAt(now: Long): Option[Long] = Some(now + TimeUnit.SECONDS.toNanos(seconds))
    }
    val (held, clock) = (new Held, new ManualClock)
    val fetches = new ScheduledFetches(held, clock, new TransferScheduler(Policy.Urgent, () => window))
    val fetch = fetches.fetch(block("small", 100), Urgency(0, 0), 0, 1, new Memory(100))
    held.serve(_ => random(100))
    clock.advance(1)
    assert(fetch.done.isDone && clock.pending === 1)
    seconds = 1
    fetches.cancel(fetch) // it is here: nothing but an event
    assert(clock.pending === 2)
    clock.advance(20)
    assert(clock.pending === 1)
  }

  test("blocks that many threads want, and whose chunks come on others, all arrive") {
    val network = Executors.newFixedThreadPool(3)
    val bytes = Map("a" -> random(700 * Kibi), "b" -> random(3 * Kibi), "c" -> random(2000 * Kibi))
    val chunks = new Chunks {
      override def fetch(from: ChunkPeer, chunk: Chunk, into: ChunkTarget, deadline: Long)(
          done: Option[ChunkFailure] => Unit
      ): ChunkFetch = {
        network.execute { () =>
          into.write(ByteBuffer.wrap(bytes(chunk.block), chunk.offset.toInt, chunk.length))
          done(None)
        }
        () => ()
      }
    }
    val fetches = new ScheduledFetches(chunks, SystemClock)
    val wanting = Executors.newFixedThreadPool(4)
    try {
      val all =
        for (number <- 0 until 60; (name, expected) <- bytes) yield wanting.submit { () =>
          val target = new Memory(expected.length)
          val urgency = Urgency(number % 2, number % 5)
          val wanted = RemoteBlock(ChunkPeer("there", number % 3), 7, name, expected.length.toLong)
          fetches.fetch(wanted, urgency, 0, 1, target).done.get(20, TimeUnit.SECONDS)
          java.util.Arrays.equals(target.memory, expected)
        }
      all.foreach(arrived => assert(arrived.get(30, TimeUnit.SECONDS)))
      assert(fetches.pending === 0)
    } finally Seq(network, wanting).foreach(_.shutdownNow())
  }
}
