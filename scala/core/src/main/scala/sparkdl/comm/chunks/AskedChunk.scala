package sparkdl.comm.chunks

import java.util.concurrent.RejectedExecutionException
import java.util.concurrent.atomic.AtomicInteger

import scala.util.control.NonFatal

import io.netty.buffer.ByteBuf
import io.netty.channel.{Channel, ChannelFuture}

import org.apache.spark.network.buffer.ManagedBuffer
import org.apache.spark.network.protocol.{StreamFailure, StreamResponse}

import sparkdl.comm.transport.{Answer, Chunk, ChunkPeer, ChunkSource}

/**
 * A chunk that a peer asked for over `channel`. Its block is open no longer than a part of it is being sent.
 *
 * @param number that the peer gave it
 * @param unconfirmed of the channel
 * @param sending counts what is being sent
 */
private[chunks] final class AskedChunk(
    number: Long,
    override val chunk: Chunk,
    override val to: ChunkPeer,
    source: ChunkSource,
    channel: Channel,
    unconfirmed: Unconfirmed,
    sending: AtomicInteger
) extends Answer {
  override def send(offset: Int, length: Int)(done: Option[Long] => Unit): Boolean =
    open(Chunk(chunk.job, chunk.block, chunk.offset + offset, length)) match {
      case Left(why) =>
        write(channel.writeAndFlush(new StreamFailure(Wire.partId(number, 0), why)), () => ())(_ => ())
        false
      case Right((bytes, body)) =>
        val part = new StreamResponse(Wire.partId(number, length), length.toLong, bytes)
        write(send(part, body), () => bytes.release())(done)
        true
    }

  /** What is on disk is read here. */
  private def open(part: Chunk): Either[String, (ManagedBuffer, AnyRef)] =
    try source.open(part).toRight(s"block ${chunk.block} is not here").map(bytes => bytes -> bytes.convertToNetty())
    catch { case NonFatal(e) => Left(e.toString) }

  private def send(part: StreamResponse, body: AnyRef): ChannelFuture = body match {
    case inMemory: ByteBuf => Frame.write(channel, part, inMemory)
    case _ =>
      part.body.retain() // which Spark's encoder releases
      channel.writeAndFlush(part)
  }

  /** On the channel's own thread: confirmations come in the order in which it was sent. */
  private def write(send: => ChannelFuture, release: () => Unit)(done: Option[Long] => Unit): Unit = {
    def over(): Unit = {
      sending.decrementAndGet()
      release()
    }
    def lost(): Unit = {
      over()
      done(None)
    }
    sending.incrementAndGet()
    try
      channel.eventLoop.execute { () =>
        if (unconfirmed.add(done)) send.addListener((_: io.netty.util.concurrent.Future[Void]) => over())
        else lost()
      }
    catch { case _: RejectedExecutionException => lost() } // the network was closed
  }
}
