package sparkdl.comm.flow

import java.util.concurrent.atomic.AtomicLong

import sparkdl.comm.Clock
import sparkdl.comm.transport.{ChunkPeer, MessagePart, PeerMessages}

/**
 * Sends messages as a [[TransferScheduler]] decides: this executor's uplink is what it schedules. What the kernel has keeps its
 * order, so it gets little more at a time than the links carry; what waits here is overtaken by what is more urgent. One for all
 * that an executor sends. Any thread may call it; it never waits.
 */
private[comm] final class ScheduledMessages(
    messages: PeerMessages,
    clock: Clock,
    scheduler: TransferScheduler = TransferScheduler.ofUplink()
) {
  import ScheduledMessages._

  private val transfers = new Transfers[Message](clock, scheduler)(send)
  private val count = new AtomicLong

  /** Messages of which nothing says that their peers have them. */
  def pending: Int = transfers.pending

  /**
   * Sends a message as soon as its turn comes. If the connection ends first, it is lost, as are all others that wait for this
   * peer then.
   *
   * @param urgency and `turn`: as in [[Wanted]]
   */
  def send(to: ChunkPeer, message: Array[Byte], urgency: Urgency, turn: Int): Unit = {
    val wanted = new Wanted("message", to.toString, message.length.toLong, urgency, turn)
    transfers.want(wanted, Message(to, count.incrementAndGet(), message))
  }

  private def send(request: Request, message: Message): Unit = {
    val part = MessagePart(message.number, message.bytes, request.offset.toInt, request.bytes)
    messages.send(message.to, part) { arrived =>
      if (arrived.isDefined) transfers.done(request, arrived) else transfers.cancelAll(request.block.peer)
    }
  }
}

private object ScheduledMessages {
  private final case class Message(to: ChunkPeer, number: Long, bytes: Array[Byte])
}
