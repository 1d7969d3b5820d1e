package sparkdl.comm.chunks

import java.util.ArrayDeque
import java.util.concurrent.RejectedExecutionException

import scala.jdk.CollectionConverters._

import io.netty.channel.Channel

import org.apache.spark.network.buffer.NioManagedBuffer
import org.apache.spark.network.protocol.OneWayMessage

import sparkdl.comm.transport.{MessagePart, PeerMessages}

/**
 * Parts of messages to one peer. One is sent at once if the network takes it; those that come meanwhile travel together.
 * Whoever sent one learns when the peer has it.
 */
private[chunks] final class MessageQueue {
  private val waiting = new ArrayDeque[MessagePart]
  private var channel: Option[Channel] = None
  private var writing = false

  // Of those that the peer has not confirmed, in their order, what to call.
  private val unconfirmed = new ArrayDeque[Option[Long] => Unit]
  private var confirmed = 0L
  private var ended = false

  /** @param done as [[PeerMessages]] has it */
  def add(part: MessagePart, done: Option[Long] => Unit): Unit = {
    val late = synchronized {
      if (!ended) {
        waiting.add(part)
        unconfirmed.add(done)
      }
      ended
    }
    if (late) done(None) else write()
  }

  /**
   * The peer has so many of them; false if it cannot.
   *
   * @param time of that by the peer's clock
   */
  def confirm(total: Long, time: Long): Boolean = {
    val found = synchronized {
      val count = total - confirmed
      if (count < 0 || count > unconfirmed.size) None
      else {
        confirmed = total
        Some(Vector.fill(count.toInt)(unconfirmed.poll()))
      }
    }
    found.foreach(_.foreach(_(Some(time))))
    found.isDefined
  }

  /** There is no connection any more. */
  def end(): Unit = {
    val left = synchronized {
      ended = true
      val left = unconfirmed.asScala.toVector
      unconfirmed.clear()
      waiting.clear()
      left
    }
    left.foreach(_(None))
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
    to.writeAndFlush(new OneWayMessage(new NioManagedBuffer(Wire.batch(batch))))
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
