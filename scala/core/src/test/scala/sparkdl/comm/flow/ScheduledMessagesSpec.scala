package sparkdl.comm.flow

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.ManualClock
import sparkdl.comm.transport.{ChunkPeer, PeerMessages}

class ScheduledMessagesSpec extends AnyFunSuite {
  private val Seq(one, other) = Seq(1, 2).map(ChunkPeer("there", _))

  /** Keeps what is sent until the test says what became of it. */
  private final class Held extends PeerMessages {
    var sent = Vector.empty[(ChunkPeer, Int, Boolean => Unit)]
    override def send(to: ChunkPeer, message: Array[Byte])(done: Boolean => Unit): Unit =
      sent :+= ((to, message(0).toInt, done))

    def numbers: Seq[Int] = sent.map(_._2)

    /** The first one arrived, or was lost; it is forgotten. */
    def end(arrived: Boolean): Int = {
      val (_, number, done) = sent.head
      sent = sent.tail
      done(arrived)
      number
    }
  }

  private def message(number: Int): Array[Byte] = Array.fill(10 << 10)(number.toByte)

  /** As many bytes at a time as one message has, or as two. */
  private def messages(held: Held, window: Int = 10 << 10): ScheduledMessages =
    new ScheduledMessages(
      held,
      new ManualClock,
      new TransferScheduler(Policy.Urgent, () => new FixedWindow(window.toLong))
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
}
