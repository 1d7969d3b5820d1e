// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.flow

import java.util.concurrent.{ConcurrentHashMap, Executors, TimeUnit}
import java.util.concurrent.atomic.AtomicInteger

import scala.jdk.CollectionConverters._

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.{ManualClock, SystemClock}
import sparkdl.comm.transport.{Chunk, ChunkAnswer, ChunkPeer, MessagePart, PeerMessages}

class ScheduledSendsSpec extends AnyFunSuite {
  private val Seq(one, other) = Seq(1, 2).map(ChunkPeer("there", _, "1"))

  /** Network that keeps sent parts until the test confirms or loses them. */
  private final class RecordingMessages extends PeerMessages {
    var sent = Vector.empty[(ChunkPeer, Int, Option[Long] => Unit)]
    var parts = Vector.empty[MessagePart]
    var lost = Vector.empty[ChunkPeer]

    /** Exceptions to throw, by the number of the message. */
    var failures = Map.empty[Int, Throwable]

    override def send(to: ChunkPeer, part: MessagePart)(done: Option[Long] => Unit): Unit = {
      failures.get(part.message(0).toInt).foreach(throw _)
      sent :+= ((to, part.message(0).toInt, done))
      parts :+= part
    }

    def numbers: Seq[Int] = sent.map(_._2)

    /** Confirm or lose the first part, and return its number. */
    def end(arrived: Boolean): Int = {
      val (_, number, done) = sent.head
      sent = sent.tail
      done(if (arrived) Some(0) else None)
      number
    }
  }

  private def message(number: Int): Array[Byte] = Array.fill(10 << 10)(number.toByte)

  /** Return a sender with a window of one message, or of two. */
  private def messages(network: RecordingMessages, window: Int = 10 << 10): ScheduledSends =
    new ScheduledSends(
      network,
      new ManualClock,
      peer => network.lost :+= peer,
      new TransferScheduler(() => new FixedWindow(window.toLong))
    )

  test("urgent messages overtake waiting ones, and the window bounds the bytes in flight") {
    val network = new RecordingMessages
    val sending = messages(network)
    Seq(1 -> 7, 2 -> 9, 3 -> 8, 4 -> 2).foreach { case (number, order) =>
      sending.send(one, message(number), Urgency(0, order), 0)
    }
    assert(network.numbers === Seq(1) && sending.pending === 4)
    assert(Iterator.continually(network.end(arrived = true)).take(4).toSeq === Seq(1, 4, 3, 2))
    assert(network.sent.isEmpty && sending.pending === 0)
  }

  test("an urgent message overtakes the rest of a long one") {
    val network = new RecordingMessages
    val sending = messages(network, window = 32 << 10)
    sending.send(one, Array.fill(100 << 10)(1.toByte), Urgency(0, 5), 0)
    sending.send(one, message(2), Urgency(0, 1), 0)
    assert(Iterator.continually(network.end(arrived = true)).take(4).toSeq === Seq(1, 2, 1, 1))
    assert(network.sent.isEmpty && sending.pending === 0)
    val (long, short) = network.parts.partition(_.message.length > (50 << 10))
    assert(
      long.map(_.number).distinct.size === 1 && !short.map(_.number).contains(long.head.number)
    )
    assert(long.map(_.offset) === long.scanLeft(0)(_ + _.length).init && long.map(_.length)
      .sum === (100 << 10))
  }

  test("equally urgent messages go to peers by turn, and keep their order otherwise") {
    val network = new RecordingMessages
    val sending = messages(network)
    Seq(1 -> one, 2 -> one, 3 -> other).foreach { case (number, peer) =>
      sending.send(peer, message(number), Urgency(0, 0), turn = peer.port)
    }
    assert(Iterator.continually(network.end(arrived = true)).take(3).toSeq === Seq(1, 2, 3))
  }

  test("when a connection ends, only the messages that wait for its peer are lost") {
    val network = new RecordingMessages
    val sending = messages(network, window = 20 << 10)
    (1 to 4).foreach(number => sending.send(one, message(number), Urgency(0, number), 0))
    sending.send(other, message(5), Urgency(0, 5), 0)
    assert(network.numbers === Seq(1, 2))
    assert(network.end(arrived = false) === 1)
    assert(network.numbers === Seq(2, 5) && sending.pending === 1)
    network.end(arrived = false) // this was reported before
    sending.send(one, message(6), Urgency(0, 0), 0)
    assert(network.numbers === Seq(5, 6), "a new connection may be made")
    Seq(5, 6).foreach(number => assert(network.end(arrived = true) === number))
    assert(sending.pending === 0)
  }

  test("any exception on sending drops the messages for that peer, and other messages are sent") {
    val network = new RecordingMessages
    val sending = messages(network, window = 20 << 10)
    network.failures =
      Map(
        1 -> new OutOfMemoryError("no memory for a thread"),
        4 -> new IllegalStateException("broken")
      )
    sending.send(one, message(1), Urgency(0, 0), 0)
    assert(network.lost === Seq(one) && network.numbers.isEmpty && sending.pending === 0)
    Seq(2, 3).foreach(number => sending.send(other, message(number), Urgency(0, 0), 0))
    Seq(4, 5).foreach(number => sending.send(one, message(number), Urgency(0, 0), 0))
    sending.send(other, message(6), Urgency(0, 0), 0)
    assert(network.numbers === Seq(2, 3), "all peers share the window")
    assert(Iterator.continually(network.end(arrived = true)).take(3).toSeq === Seq(2, 3, 6))
    assert(network.lost === Seq(one, one) && sending.pending === 0)
  }

  /** Chunk that was requested over `connection` for `to`. */
  private final class TestAnswer(override val to: ChunkPeer, override val connection: String)
      extends ChunkAnswer {
    override val chunk: Chunk = Chunk(1, "block", 0, 10 << 10)
    var ends = Vector.empty[Option[Long] => Unit]
    override def send(offset: Int, length: Int)(
        done: Option[Long] => Unit,
        refused: () => Unit
    ): Unit = ends :+= done
  }

  test(
    "a connection that ends drops only its own requests, also if its peer gave another address"
  ) {
    val network = new RecordingMessages
    val sending = messages(network, window = 20 << 10)
    val Seq(lying, waiting, true1, true2) =
      Seq("lying", "lying", "true", "true").map(new TestAnswer(one, _))
    sending.answer(lying, Urgency(0, 1), 0)
    sending.answer(true1, Urgency(0, 2), 0)
    sending.answer(waiting, Urgency(0, 3), 0)
    sending.send(one, message(1), Urgency(0, 4), 0)
    sending.answer(true2, Urgency(0, 5), 0)
    lying.ends.head(None)
    assert(waiting.ends.isEmpty && network.numbers === Seq(1) && sending.pending === 3)
    true1.ends.head(Some(0))
    assert(true2.ends.size === 1)
    assert(
      network.end(arrived = false) === 1 && sending.pending === 1,
      "the chunk is sent over another connection"
    )
    true2.ends.head(Some(0))
    assert(sending.pending === 0)
  }

  /** Chunk of 30 KiB whose last part cannot be read. */
  private final class TruncatedAnswer(override val to: ChunkPeer) extends ChunkAnswer {
    override val chunk: Chunk = Chunk(1, "block", 0, 30 << 10)
    override def connection: AnyRef = this
    var sent = Vector.empty[(Int, Int)]
    override def send(
        offset: Int,
        length: Int
    )(done: Option[Long] => Unit, refused: () => Unit): Unit =
      if (offset + length < bytes) {
        sent :+= ((offset, length))
        done(Some(0))
      } else refused()
  }

  test("a requested chunk is sent in parts, by priority, until one cannot be read") {
    val network = new RecordingMessages
    val sending = messages(network)
    val answer = new TruncatedAnswer(one)
    sending.send(one, message(1), Urgency(0, 1), 0)
    sending.answer(answer, Urgency(0, 2), 0)
    sending.send(one, message(3), Urgency(0, 3), 0)
    assert(answer.sent.isEmpty && network.end(arrived = true) === 1)
    assert(answer.sent.map(_._1) === answer.sent.scanLeft(0)(_ + _._2).init && answer.sent.map(_._2)
      .sum < answer.bytes)
    assert(network.end(arrived = true) === 3 && sending.pending === 0)
  }

  test("a wake-up that an earlier one replaced has no successor") {
    var seconds = 10L
    val window = new Window {
      override def bytes: Long = Long.MaxValue
      override def markLimited(): Unit = ()
      override def wakeAt(now: Long): Option[Long] = Some(now + TimeUnit.SECONDS.toNanos(seconds))
    }
    val (network, clock) = (new RecordingMessages, new ManualClock)
    val sending = new ScheduledSends(network, clock, _ => (), new TransferScheduler(() => window))
    sending.send(one, Array[Byte](1), Urgency(0, 0), 0)
    network.end(arrived = true)
    clock.advance(1)
    assert(sending.pending === 0 && clock.pending === 1)
    seconds = 1
    sending.send(one, Array[Byte](2), Urgency(0, 0), 0)
    assert(clock.pending === 2)
    clock.advance(20)
    assert(clock.pending === 1)
  }

  test("messages of many threads are all sent, each with its parts in order") {
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
