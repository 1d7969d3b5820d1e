package sparkdl.comm.chunks

import java.util.ArrayDeque
import java.util.concurrent.RejectedExecutionException

import io.netty.channel.Channel

import sparkdl.comm.transport.{MessagePart, PeerMessages}

/**
 * Parts of messages to one peer. One is sent at once if the network takes it; those that come meanwhile travel together.
 * Whoever sent one learns when the peer has it.
 */
private[chunks] final class MessageQueue {
  private val waiting = new ArrayDeque[MessagePart]
  private var channel: Option[Channel] = None
  private var writing = false

  private val unconfirmed = new Unconfirmed

  /** @param done as [[PeerMessages]] has it */
  def add(part: MessagePart, done: Option[Long] => Unit): Unit = {
    val late = synchronized {
      val added = unconfirmed.add(done)
      if (added) waiting.add(part)
      !added
    }
    if (late) done(None) else write()
  }

  /** As of [[Unconfirmed]]. */
  def confirm(total: Long, time: Long): Boolean = unconfirmed.confirm(total, time)

  /** There is no connection any more. */
  def end(): Unit = {
    synchronized(waiting.clear())
    unconfirmed.end()
  }

  def opened(channel: Channel): Unit = {
    synchronized(this.channel = Some(channel))
    write()
  }

  private def write(): Unit = {
    val (to, batch) = synchronized {
      val to = if (writing) None else channel
      val batch = if (to.isDefined) next() else Vector.empty
      writing |= batch.nonEmpty
      (to, batch)
    }
    // On the channel's own thread, whose turn to write comes after what was written to the channel before.
    if (batch.nonEmpty)
      try to.get.eventLoop.execute(() => write(to.get, batch))
      catch { case _: RejectedExecutionException => () } // the network was closed
  }

  private def write(to: Channel, batch: Seq[MessagePart]): Unit =
    Frame.write(to, Wire.batch(batch))
      .addListener { (_: io.netty.util.concurrent.Future[Void]) =>
        synchronized { writing = false }
        write()
      }

  /** At least one, if any waits, and no more together than one message may have. */
  private def next(): Vector[MessagePart] = {
    val batch = Vector.newBuilder[MessagePart]
    var bytes = 0
    while (!waiting.isEmpty && (bytes == 0 || bytes + waiting.peek.length <= PeerMessages.MaxBytes)) {
      bytes += Wire.PartHead + waiting.peek.length
      batch += waiting.poll()
    }
    batch.result()
  }
}
