package sparkdl.comm.flow

import java.util.concurrent.{ConcurrentHashMap, Executors, TimeUnit}
import java.util.concurrent.atomic.AtomicInteger

import scala.jdk.CollectionConverters._

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.{ManualClock, SystemClock}
import sparkdl.comm.transport.{Answer, Chunk, ChunkPeer, MessagePart, PeerMessages}

class ScheduledSendsSpec extends AnyFunSuite {
  private val Seq(one, other) = Seq(1, 2).map(ChunkPeer("there", _, "1"))

  /** Keeps what is sent until the test says what became of it. */
  private final class Held extends PeerMessages {
    var sent = Vector.empty[(ChunkPeer, Int, Option[Long] => Unit)]
    var parts = Vector.empty[MessagePart]
    var lost = Vector.empty[ChunkPeer]

    /** What is thrown for a message with the number that it has. */
    var broken = Map.empty[Int, Throwable]

    override def send(to: ChunkPeer, part: MessagePart)(done: Option[Long] => Unit): Unit = {
      broken.get(part.message(0).toInt).foreach(throw _)
      sent :+= ((to, part.message(0).toInt, done))
      parts :+= part
    }

    def numbers: Seq[Int] = sent.map(_._2)

    /** The first one arrived, or was lost; it is forgotten. */
    def end(arrived: Boolean): Int = {
      val (_, number, done) = sent.head
      sent = sent.tail
      done(if (arrived) Some(0) else None)
      number
    }
  }

  private def message(number: Int): Array[Byte] = Array.fill(10 << 10)(number.toByte)

  /** As many bytes at a time as one message has, or as two. */
  private def messages(held: Held, window: Int = 10 << 10): ScheduledSends =
    new ScheduledSends(
      held,
      new ManualClock,
      peer => held.lost :+= peer,
      new TransferScheduler(() => new FixedWindow(window.toLong))
    )

  test("urgent messages overtake those that wait, and no more is on its way than fits") {
    val held = new Held
    val sending = messages(held)
    Seq(1 -> 7, 2 -> 9, 3 -> 8, 4 -> 2).foreach { case (number, order) =>
      sending.send(one, message(number), Urgency(0, order), 0)
    }
    assert(held.numbers === Seq(1) && sending.pending === 4)
    assert(Iterator.continually(held.end(arrived = true)).take(4).toSeq === Seq(1, 4, 3, 2))
    assert(held.sent.isEmpty && sending.pending === 0)
  }

  test("what is urgent overtakes a message in the middle, the rest of which follows") {
    val held = new Held
    val sending = messages(held, window = 32 << 10)
    sending.send(one, Array.fill(100 << 10)(1.toByte), Urgency(0, 5), 0)
    sending.send(one, message(2), Urgency(0, 1), 0)
    assert(Iterator.continually(held.end(arrived = true)).take(4).toSeq === Seq(1, 2, 1, 1))
    assert(held.sent.isEmpty && sending.pending === 0)
    val (long, short) = held.parts.partition(_.message.length > (50 << 10))
    assert(long.map(_.number).distinct.size === 1 && !short.map(_.number).contains(long.head.number))
    assert(long.map(_.offset) === long.scanLeft(0)(_ + _.length).init && long.map(_.length).sum === (100 << 10))
  }

  test("messages that are as urgent go to peers in turn, and keep their order otherwise") {
    val held = new Held
    val sending = messages(held)
    Seq(1 -> one, 2 -> one, 3 -> other).foreach { case (number, peer) =>
      sending.send(peer, message(number), Urgency(0, 0), turn = peer.port)
    }
    assert(Iterator.continually(held.end(arrived = true)).take(3).toSeq === Seq(1, 2, 3))
  }

  test("when a connection ends, what waits for its peer is lost with it, and nothing else") {
    val held = new Held
    val sending = messages(held, window = 20 << 10)
    (1 to 4).foreach(number => sending.send(one, message(number), Urgency(0, number), 0))
    sending.send(other, message(5), Urgency(0, 5), 0)
    assert(held.numbers === Seq(1, 2))
    assert(held.end(arrived = false) === 1)
    assert(held.numbers === Seq(2, 5) && sending.pending === 1)
    held.end(arrived = false) // which is known already
    sending.send(one, message(6), Urgency(0, 0), 0)
    assert(held.numbers === Seq(5, 6), "a new connection may be made")
    Seq(5, 6).foreach(number => assert(held.end(arrived = true) === number))
    assert(sending.pending === 0)
  }

  test("what cannot be sent, whatever is thrown, loses what waits for its peer, and others are sent") {
    val held = new Held
    val sending = messages(held, window = 20 << 10)
    held.broken = Map(1 -> new OutOfMemoryError("no memory for a thread"), 4 -> new IllegalStateException("broken"))
    sending.send(one, message(1), Urgency(0, 0), 0)
    assert(held.lost === Seq(one) && held.numbers.isEmpty && sending.pending === 0)
    Seq(2, 3).foreach(number => sending.send(other, message(number), Urgency(0, 0), 0))
    Seq(4, 5).foreach(number => sending.send(one, message(number), Urgency(0, 0), 0))
    sending.send(other, message(6), Urgency(0, 0), 0)
    assert(held.numbers === Seq(2, 3), "the window is that of all")
    assert(Iterator.continually(held.end(arrived = true)).take(3).toSeq === Seq(2, 3, 6))
    assert(held.lost === Seq(one, one) && sending.pending === 0)
  }

  /** A chunk that whoever asked over `connection` says `to` wants. */
  private final class Asked(override val to: ChunkPeer, override val connection: String) extends Answer {
    override val chunk: Chunk = Chunk(1, "block", 0, 10 << 10)
    var ends = Vector.empty[Option[Long] => Unit]
    override def send(offset: Int, length: Int)(done: Option[Long] => Unit, refused: () => Unit): Unit = ends :+= done
  }

  test("a connection that ends takes along what waits for it, and nothing of another one, whoever it says to be") {
    val held = new Held
    val sending = messages(held, window = 20 << 10)
    val Seq(lying, waiting, true1, true2) = Seq("lying", "lying", "true", "true").map(new Asked(one, _))
    sending.answer(lying, Urgency(0, 1), 0)
    sending.answer(true1, Urgency(0, 2), 0)
    sending.answer(waiting, Urgency(0, 3), 0)
    sending.send(one, message(1), Urgency(0, 4), 0)
    sending.answer(true2, Urgency(0, 5), 0)
    lying.ends.head(None)
    assert(waiting.ends.isEmpty && held.numbers === Seq(1) && sending.pending === 3)
    true1.ends.head(Some(0))
    assert(true2.ends.size === 1)
    assert(held.end(arrived = false) === 1 && sending.pending === 1, "the chunk is sent over another connection")
    true2.ends.head(Some(0))
    assert(sending.pending === 0)
  }

  /** Of 30 KiB, and the last part of it cannot be had. */
  private final class HalfThere(override val to: ChunkPeer) extends Answer {
    override val chunk: Chunk = Chunk(1, "block", 0, 30 << 10)
    override def connection: AnyRef = this
    var sent = Vector.empty[(Int, Int)]
    override def send(offset: Int, length: Int)(done: Option[Long] => Unit, refused: () => Unit): Unit =
      if (offset + length < bytes) {
        sent :+= ((offset, length))
        done(Some(0))
      } else refused()
  }

  test("a chunk that was asked for travels in parts, in its turn, until one cannot be had") {
    val held = new Held
    val sending = messages(held)
    val answer = new HalfThere(one)
    sending.send(one, message(1), Urgency(0, 1), 0)
    sending.answer(answer, Urgency(0, 2), 0)
    sending.send(one, message(3), Urgency(0, 3), 0)
    assert(answer.sent.isEmpty && held.end(arrived = true) === 1)
    assert(answer.sent.map(_._1) === answer.sent.scanLeft(0)(_ + _._2).init && answer.sent.map(_._2).sum < answer.bytes)
    assert(held.end(arrived = true) === 3 && sending.pending === 0)
  }

  test("a wake-up of which an earlier one took the place has no successor") {
    var seconds = 10L
    val window = new Window {
      override def bytes: Long = Long.MaxValue
      override def held(): Unit = ()
      override def wakeAt(now: Long): Option[Long] = Some(now + TimeUnit.SECONDS.toNanos(seconds))
    }
    val (held, clock) = (new Held, new ManualClock)
    val sending = new ScheduledSends(held, clock, _ => (), new TransferScheduler(() => window))
    sending.send(one, Array[Byte](1), Urgency(0, 0), 0)
    held.end(arrived = true)
    clock.advance(1)
    assert(sending.pending === 0 && clock.pending === 1)
    seconds = 1
    sending.send(one, Array[Byte](2), Urgency(0, 0), 0)
    assert(clock.pending === 2)
    clock.advance(20)
    assert(clock.pending === 1)
  }

  test("what many threads send, and is confirmed on others, goes all, the parts of each message in their order") {
    val network = Executors.newFixedThreadPool(3)
    val senders = Executors.newFixedThreadPool(4)
    val arrived = new ConcurrentHashMap[Long, Integer]
    val disorder = new AtomicInteger
    val messages = new PeerMessages {
      override def send(to: ChunkPeer, part: MessagePart)(done: Option[Long] => Unit): Unit = {
        if (part.offset != arrived.getOrDefault(part.number, 0)) disorder.incrementAndGet()
        arrived.put(part.number, part.offset + part.length)
        network.execute(() => done(Some(System.nanoTime)))
      }
    }
    val sending = new ScheduledSends(messages, SystemClock, _ => ())
    try {
      val sizes = (1 to 60).map(number => if (number % 3 == 0) 700 << 10 else 3000)
      sizes.zipWithIndex.map { case (bytes, number) =>
        val send: Runnable =
          () =>
            sending.send(
              ChunkPeer("there", number % 3, "1"),
              new Array[Byte](bytes),
              Urgency(number % 2L, number % 5),
              0
            )
        senders.submit(send)
      }.foreach(_.get(30, TimeUnit.SECONDS))
      val end = System.nanoTime + TimeUnit.SECONDS.toNanos(30)
      while (sending.pending > 0 && System.nanoTime < end) Thread.sleep(1)
      assert(sending.pending === 0 && disorder.get === 0)
      assert(arrived.values.asScala.map(_.toInt).toSeq.sorted === sizes.sorted)
    } finally Seq(network, senders).foreach(_.shutdownNow())
  }
}
