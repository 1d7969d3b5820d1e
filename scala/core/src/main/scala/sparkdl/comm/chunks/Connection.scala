package sparkdl.comm.chunks

import java.util.ArrayDeque
import java.util.concurrent.RejectedExecutionException

import scala.jdk.CollectionConverters._

import io.netty.channel.Channel
import io.netty.util.AttributeKey

import org.apache.spark.network.client.TransportClient

import sparkdl.comm.Clock
import sparkdl.comm.transport.MessagePart

/**
 * The connection to one peer, from the first attempt until it ends. What is to be sent over it waits until it is there.
 *
 * @param onEnd called once, when there never was one or it is no more
 */
private[chunks] final class Connection(clock: Clock, onEnd: Connection => Unit) {
  private val waiting = new ArrayDeque[PendingFetch]
  private val messages = new MessageQueue

  // Either, or none of both while it is made.
  private var client: Option[TransportClient] = None
  private var answers: Option[Answers] = None
  private var end: Option[Throwable] = None

  def ask(fetch: PendingFetch): Unit = {
    val cause = synchronized {
      if (end.isEmpty) answers.fold[Unit](waiting.add(fetch))(ask(fetch, _))
      end
    }
    cause.foreach(fetch.peerLost)
  }

  /** On the connection's own thread, whoever calls. */
  private def ask(fetch: PendingFetch, answers: Answers): Unit =
    try client.get.getChannel.eventLoop.execute(() => if (!fetch.isOver) answers.ask(fetch))
    catch { case _: RejectedExecutionException => () } // the network was closed, which ends all fetches

  /** @param done as [[sparkdl.comm.transport.PeerMessages]] has it */
  def send(part: MessagePart, done: Option[Long] => Unit): Unit = messages.add(part, done)

  /** As of [[MessageQueue]]. */
  def confirm(total: Long, time: Long): Boolean = messages.confirm(total, time)

  def opened(client: TransportClient): Unit = {
    client.getChannel.attr(Connection.OfChannel).set(this)
    val answers = new Answers(client, clock, ended)
    synchronized {
      this.client = Some(client)
      this.answers = Some(answers)
      waiting.asScala.foreach(ask(_, answers))
      waiting.clear()
    }
    messages.opened(client.getChannel)
    client.getChannel.closeFuture.addListener((_: io.netty.util.concurrent.Future[Void]) => ended(Connection.Broke))
  }

  /** The first cause stays. */
  def ended(cause: Throwable): Unit = {
    val left = synchronized {
      if (end.isDefined) None
      else {
        end = Some(cause)
        val left = waiting.asScala.toVector
        waiting.clear()
        Some(left)
      }
    }
    left.foreach { fetches =>
      onEnd(this)
      fetches.foreach(_.peerLost(cause))
      synchronized(answers).foreach(_.ended(cause))
      messages.end()
      close()
    }
  }

  def close(): Unit = synchronized(client).foreach(_.getChannel.close())
}

private[chunks] object Connection {
  private val OfChannel = AttributeKey.valueOf[Connection]("sparkdl.connection")

  /** None before it is opened. */
  def of(channel: Channel): Option[Connection] = Option(channel.attr(OfChannel).get)

  private val Broke = new java.io.IOException("the connection broke") {
    override def fillInStackTrace(): Throwable = this
  }
}
