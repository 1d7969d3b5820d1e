// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.io.IOException
import java.util.ArrayDeque
import java.util.concurrent.{CompletableFuture, RejectedExecutionException}

import scala.jdk.CollectionConverters._

import io.netty.channel.Channel
import io.netty.util.AttributeKey

import org.apache.spark.network.client.TransportClient

import sparkdl.comm.{Callbacks, Clock}
import sparkdl.comm.transport.MessagePart

/**
 * Connection to one peer, from the first attempt until it ends. What is sent over it waits until it
 * is open.
 *
 * @param onEnd called once, when the connection could not be made or has ended
 */
private[chunks] final class Connection(clock: Clock, onEnd: Connection => Unit) {
  private val waiting = new ArrayDeque[PendingFetch]
  private val messages = new MessageQueue

  // All empty while the connection is made. Then both client and answers are set, or only end.
  private var client: Option[TransportClient] = None
  private var answers: Option[PendingResponses] = None
  private var endCause: Option[Throwable] = None

  def ask(fetch: PendingFetch): Unit = {
    val cause = synchronized {
      if (endCause.isEmpty) answers.fold[Unit](waiting.add(fetch))(ask(fetch, _))
      endCause
    }
    cause.foreach(fetch.peerLost)
  }

  /** Ask on the connection's event loop, whatever thread calls. */
  private def ask(fetch: PendingFetch, answers: PendingResponses): Unit =
    try client.get.getChannel.eventLoop.execute(() => if (!fetch.isOver) answers.ask(fetch))
    // the network was closed, which ends all fetches
    catch { case _: RejectedExecutionException => () }

  /**
   * Send a part.
   *
   * @param done as in [[sparkdl.comm.transport.PeerMessages]]
   */
  def send(part: MessagePart, done: Option[Long] => Unit): Unit = messages.add(part, done)

  /**
   * Send an empty message. If it is not confirmed within `patienceNanos`, end the connection.
   *
   * @return a future that completes when the message was confirmed or the connection has ended
   */
  def probe(patienceNanos: Long): CompletableFuture[Void] = {
    val over = new CompletableFuture[Void]
    send(Connection.Probe, _ => over.complete(null))
    clock.after(patienceNanos)(if (!over.isDone) end(Connection.Silent))
    over
  }

  /** Confirm parts, as in [[UnconfirmedSends.confirm]]. */
  def confirm(total: Long, time: Long): Boolean = messages.confirm(total, time)

  def onOpened(client: TransportClient): Unit = {
    client.getChannel.attr(Connection.OfChannel).set(this)
    val answers = new PendingResponses(client, clock, end)
    synchronized {
      this.client = Some(client)
      this.answers = Some(answers)
      waiting.asScala.foreach(ask(_, answers))
      waiting.clear()
    }
    messages.onOpened(client.getChannel)
    client.getChannel.closeFuture.addListener((_: io.netty.util.concurrent.Future[Void]) =>
      end(Connection.Broke)
    )
  }

  /** End the connection. Only the first cause counts. */
  def end(cause: Throwable): Unit = {
    val left = synchronized {
      if (endCause.isDefined) None
      else {
        endCause = Some(cause)
        val left = waiting.asScala.toVector
        waiting.clear()
        Some(left)
      }
    }
    left.foreach { fetches =>
      val steps = Seq[() => Unit](
        () => onEnd(this),
        () => Callbacks.callAll(fetches)(_.peerLost(cause)),
        () => synchronized(answers).foreach(_.endAll(cause)),
        () => messages.end(),
        () => close()
      )
      Callbacks.callAll(steps)(_.apply())
    }
  }

  def close(): Unit = synchronized(client).foreach(_.getChannel.close())
}

private[chunks] object Connection {
  private val OfChannel = AttributeKey.valueOf[Connection]("sparkdl.connection")

  /** Return the connection of a channel; None before it is opened. */
  def of(channel: Channel): Option[Connection] = Option(channel.attr(OfChannel).get)

  private val Probe = MessagePart(0, Array.emptyByteArray, 0, 0)

  private val Broke = new EndCause("the connection broke")
  private val Silent = new EndCause("the peer did not answer a probe")

  private final class EndCause(message: String) extends IOException(message) {
    override def fillInStackTrace(): Throwable = this
  }
}
