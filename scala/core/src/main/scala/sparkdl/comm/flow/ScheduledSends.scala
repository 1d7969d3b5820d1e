// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.flow

import java.util.concurrent.atomic.AtomicLong

import org.apache.spark.internal.Logging

import sparkdl.comm.Clock
import sparkdl.comm.transport.{ChunkAnswer, ChunkPeer, MessagePart, OutboundTransfer, PeerMessages}

/**
 * Sender of this executor's messages, and of the chunks that peers ask for. A [[TransferScheduler]]
 * decides the order of all of them, because they share the executor's uplink. More urgent data
 * overtakes data that waits here, but not data that the kernel already has. So the kernel gets
 * little more at a time than the links carry. Each executor has one sender for all its data.
 * Thread-safe and non-blocking.
 *
 * @param onLost called with a peer if sending to the peer failed. All data that waits for the
 *    peer's connection is lost, as when a connection ends
 */
private[comm] final class ScheduledSends(
    messages: PeerMessages,
    clock: Clock,
    onLost: ChunkPeer => Unit,
    scheduler: TransferScheduler = new TransferScheduler
) extends Logging {
  private val transfers = new TransferDriver[OutboundTransfer](clock, scheduler)(send)(onFailure)
  private val messageCount = new AtomicLong

  /** Messages and chunks that their peers have not confirmed. */
  def pending: Int = transfers.pending

  /**
   * Send a message when the scheduler selects it. If the connection ends first, the message is lost
   * with all others that wait for this peer.
   *
   * @param urgency as in [[SendRequest]]
   * @param turn as in [[SendRequest]]
   */
  def send(to: ChunkPeer, message: Array[Byte], urgency: Urgency, turn: Int): Unit =
    send("message", new Message(to, messageCount.incrementAndGet(), message), urgency, turn)

  /** Send a chunk that a peer asked for when the scheduler selects it. */
  def answer(answer: ChunkAnswer, urgency: Urgency, turn: Int): Unit =
    send(answer.chunk.block, answer, urgency, turn)

  private def send(name: String, outbound: OutboundTransfer, urgency: Urgency, turn: Int): Unit =
    transfers.add(
      new SendRequest(name, outbound.to.toString, outbound.bytes.toLong, urgency, turn),
      outbound
    )

  private def send(request: ChunkRequest, outbound: OutboundTransfer): Unit =
    outbound.send(request.offset.toInt, request.bytes)(
      arrived =>
        if (arrived.isDefined) transfers.complete(request, arrived)
        else loseAll(outbound.connection),
      () => transfers.cancel(request.block)
    )

  private def loseAll(connection: AnyRef): Unit = transfers.cancelAll(_.connection == connection)

  private def onFailure(outbound: OutboundTransfer, cause: Throwable): Unit = {
    logError(
      s"Sending to ${outbound.to} failed: everything that waits for its connection is dropped",
      cause
    )
    loseAll(outbound.connection)
    onLost(outbound.to)
  }

  private final class Message(override val to: ChunkPeer, number: Long, message: Array[Byte])
      extends OutboundTransfer {
    override def connection: ChunkPeer = to // one connection per peer
    override def bytes: Int = message.length
    override def send(
        offset: Int,
        length: Int
    )(done: Option[Long] => Unit, refused: () => Unit): Unit =
      messages.send(to, MessagePart(number, message, offset, length))(done)
  }
}
