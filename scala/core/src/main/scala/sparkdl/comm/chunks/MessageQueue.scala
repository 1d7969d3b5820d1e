// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.util.ArrayDeque
import java.util.concurrent.RejectedExecutionException

import io.netty.channel.Channel

import sparkdl.comm.transport.{MessagePart, PeerMessages}

/**
 * Queue of message parts to one peer. A part is sent at once if the network takes it; parts that
 * are added meanwhile are batched. The sender of a part learns when the peer has it.
 */
private[chunks] final class MessageQueue {
  private val waiting = new ArrayDeque[MessagePart]
  private var channel: Option[Channel] = None
  private var isWriting = false

  private val unconfirmed = new UnconfirmedSends

  /**
   * Add a part.
   *
   * @param done as in [[PeerMessages]]
   */
  def add(part: MessagePart, done: Option[Long] => Unit): Unit = {
    val hasEnded = synchronized {
      val added = unconfirmed.add(done)
      if (added) waiting.add(part)
      !added
    }
    if (hasEnded) done(None) else write()
  }

  /** Confirm parts, as in [[UnconfirmedSends.confirm]]. */
  def confirm(total: Long, time: Long): Boolean = unconfirmed.confirm(total, time)

  /** End all parts: the connection is gone. */
  def end(): Unit = {
    synchronized(waiting.clear())
    unconfirmed.end()
  }

  def onOpened(channel: Channel): Unit = {
    synchronized(this.channel = Some(channel))
    write()
  }

  private def write(): Unit = {
    val (to, batch) = synchronized {
      val to = if (isWriting) None else channel
      val batch = if (to.isDefined) takeBatch() else Vector.empty
      isWriting |= batch.nonEmpty
      (to, batch)
    }
    // On the channel's event loop, so that it comes after earlier writes to the channel.
    if (batch.nonEmpty)
      try to.get.eventLoop.execute(() => write(to.get, batch))
      catch {
        case _: RejectedExecutionException => () // the network was closed
        case e: Throwable =>
          to.get.close() // the batch is lost
          throw e
      }
  }

  private def write(to: Channel, batch: Seq[MessagePart]): Unit =
    FrameWriter.write(to, Wire.batch(batch))
      .addListener { (_: io.netty.util.concurrent.Future[Void]) =>
        synchronized { isWriting = false }
        write()
      }

  /** Take the next batch: at least one part if any waits, and no more than fit into one message. */
  private def takeBatch(): Vector[MessagePart] = {
    val batch = Vector.newBuilder[MessagePart]
    var bytes = 0
    while (
      !waiting.isEmpty && (bytes == 0 || bytes + waiting.peek.length <= PeerMessages.MaxBytes)
    ) {
      bytes += Wire.PartHeadBytes + waiting.peek.length
      batch += waiting.poll()
    }
    batch.result()
  }
}
