package sparkdl.comm.flow

import java.util.concurrent.atomic.AtomicLong

import org.slf4j.LoggerFactory

import sparkdl.comm.Clock
import sparkdl.comm.transport.{Answer, ChunkPeer, MessagePart, Outbound, PeerMessages}

/**
 * Sends messages, and the chunks that peers ask for, as a [[TransferScheduler]] decides: this executor's uplink is what it
 * schedules. What the kernel has keeps its order, so it gets little more at a time than the links carry; what waits here is
 * overtaken by what is more urgent. One for all that an executor sends. Any thread may call it; it never waits.
 *
 * @param lost told of a peer to which something could not be sent: what waits for the connection is lost, as if it had ended
 */
private[comm] final class ScheduledSends(
    messages: PeerMessages,
    clock: Clock,
    lost: ChunkPeer => Unit,
    scheduler: TransferScheduler = new TransferScheduler
) {
  import ScheduledSends._

  private val transfers = new Transfers[Outbound](clock, scheduler)(send)(failed)
  private val count = new AtomicLong

  /** Messages and chunks of which nothing says that their peers have them. */
  def pending: Int = transfers.pending

  /**
   * Sends a message as soon as its turn comes. If the connection ends first, it is lost, as are all others that wait for this
   * peer then.
   *
   * @param urgency and `turn`: as in [[Wanted]]
   */
  def send(to: ChunkPeer, message: Array[Byte], urgency: Urgency, turn: Int): Unit =
    send("message", new Message(to, count.incrementAndGet(), message), urgency, turn)

  /** Likewise a chunk that a peer asked for. */
  def answer(answer: Answer, urgency: Urgency, turn: Int): Unit = send(answer.chunk.block, answer, urgency, turn)

  private def send(name: String, outbound: Outbound, urgency: Urgency, turn: Int): Unit =
    transfers.want(new Wanted(name, outbound.to.toString, outbound.bytes.toLong, urgency, turn), outbound)

  private def send(request: Request, outbound: Outbound): Unit =
    outbound.send(request.offset.toInt, request.bytes)(
      arrived => if (arrived.isDefined) transfers.done(request, arrived) else loseAll(outbound.connection),
      () => transfers.cancel(request.block)
    )

  private def loseAll(connection: AnyRef): Unit = transfers.cancelAll(_.connection == connection)

  private def failed(outbound: Outbound, cause: Throwable): Unit = {
    log.error(s"Nothing more is sent to ${outbound.to} of what waits for it: sending failed", cause)
    loseAll(outbound.connection)
    lost(outbound.to)
  }

  private final class Message(override val to: ChunkPeer, number: Long, message: Array[Byte]) extends Outbound {
    override def connection: ChunkPeer = to // there is one to each peer
    override def bytes: Int = message.length
    override def send(offset: Int, length: Int)(done: Option[Long] => Unit, refused: () => Unit): Unit =
      messages.send(to, MessagePart(number, message, offset, length))(done)
  }
}

private object ScheduledSends {
  private val log = LoggerFactory.getLogger(classOf[ScheduledSends])
}
