package sparkdl.comm.flow

import sparkdl.comm.Clock
import sparkdl.comm.transport.{ChunkPeer, PeerMessages}

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

  /** Messages of which nothing says that their peers have them. */
  def pending: Int = transfers.pending

  /**
   * Sends a message as soon as its turn comes. If the connection ends first, it is lost, as are all others that wait for this
   * peer then.
   *
   * @param urgency and `turn`: as in [[Wanted]]
   */
  def send(to: ChunkPeer, message: Array[Byte], urgency: Urgency, turn: Int): Unit = {
    val wanted = new Wanted("message", to.toString, message.length.toLong, urgency, turn, isWhole = true)
    transfers.want(wanted, Message(to, message))
  }

  private def send(request: Request, message: Message): Unit =
    messages.send(message.to, message.bytes) { arrived =>
      if (arrived) transfers.done(request) else transfers.cancelAll(request.block.peer)
    }
}

private object ScheduledMessages {
  private final case class Message(to: ChunkPeer, bytes: Array[Byte])
}
