// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.util.ArrayDeque
import java.util.concurrent.{RejectedExecutionException, TimeUnit}
import java.util.concurrent.atomic.AtomicInteger

import io.netty.buffer.ByteBuf
import io.netty.channel.{Channel, ChannelFuture}
import io.netty.util.ReferenceCountUtil

import org.apache.spark.network.buffer.ManagedBuffer
import org.apache.spark.network.protocol.{StreamFailure, StreamResponse}

import sparkdl.comm.transport.{Chunk, ChunkAnswer, ChunkPeer}

/**
 * Chunk that a peer asked for over `channel`. Its block is open only while a part of it is being
 * sent. It is opened and released on the channel's event loop, whatever thread sends. If it is
 * locked, its parts wait, without keeping the event loop from others.
 *
 * @param number that the peer gave it
 * @param unconfirmed sends over the channel
 * @param sending counter of parts that are being sent
 */
private[chunks] final class RequestedChunk(
    number: Long,
    override val chunk: Chunk,
    override val to: ChunkPeer,
    source: ChunkSource,
    channel: Channel,
    unconfirmed: UnconfirmedSends,
    sending: AtomicInteger
) extends ChunkAnswer {
  import RequestedChunk._

  // Used on the channel's event loop only.
  private var isRefused = false
  private val waiting = new ArrayDeque[PartSend]

  override def connection: Channel = channel

  override def send(
      offset: Int,
      length: Int
  )(done: Option[Long] => Unit, refused: () => Unit): Unit = {
    val part = PartSend(Chunk(chunk.job, chunk.block, chunk.offset + offset, length), done, refused)
    sending.incrementAndGet()
    try
      channel.eventLoop.execute { () =>
        waiting.add(part)
        if (waiting.size == 1) sendWaiting() // otherwise it is scheduled
      }
    catch { case _: RejectedExecutionException => end(done(None)) } // the network was closed
  }

  /** Send the parts that wait. While the block is locked, try again later. */
  private def sendWaiting(): Unit = {
    var isLocked = false
    try
      while (!isLocked && !waiting.isEmpty) {
        val part = waiting.poll()
        if (isRefused) end(part.refused())
        else
          open(part.chunk) match {
            case Some(opened) => send(part, opened)
            case None if channel.isOpen =>
              isLocked = true
              waiting.addFirst(part)
            case None => end(part.done(None))
          }
      }
    finally
      if (!waiting.isEmpty) {
        val retry: Runnable = () => sendWaiting()
        channel.eventLoop.schedule(retry, RetryMillis, TimeUnit.MILLISECONDS)
      }
  }

  /** Send a part. The peer confirms parts in this order. */
  private def send(part: PartSend, opened: Either[String, (StreamResponse, AnyRef)]): Unit =
    opened match {
      case Left(why) =>
        isRefused = true
        val isOpen = unconfirmed.add(_ => ())
        if (isOpen)
          FrameWriter.encodeAndWrite(channel, new StreamFailure(Wire.partId(number, 0), why))
        end(part.refused())
      case Right((answer, body)) =>
        def finish(): Unit = end(answer.body.release())
        if (unconfirmed.add(part.done))
          write(answer, body).addListener((_: io.netty.util.concurrent.Future[Void]) => finish())
        else {
          ReferenceCountUtil.release(body)
          finish()
          part.done(None)
        }
    }

  private def end(last: => Unit): Unit = {
    sending.decrementAndGet()
    last
  }

  /**
   * Open a part, and read it if it is on disk. If that fails, release the block and return the
   * reason for the peer. Return None if the block is locked.
   */
  private def open(part: Chunk): Option[Either[String, (StreamResponse, AnyRef)]] =
    try
      source.open(part) match {
        case Some(bytes) => Some(Right(read(part, bytes)))
        case None if source.has(part) => None
        case None => Some(Left(s"block ${chunk.block} is not here"))
      }
    catch { case e: Throwable => Some(Left(e.toString)) }

  private def read(part: Chunk, bytes: ManagedBuffer): (StreamResponse, AnyRef) =
    try {
      val answer = new StreamResponse(Wire.partId(number, part.length), part.length.toLong, bytes)
      answer -> bytes.convertToNetty()
    } catch {
      case e: Throwable =>
        bytes.release()
        throw e
    }

  private def write(answer: StreamResponse, body: AnyRef): ChannelFuture = body match {
    case inMemory: ByteBuf => FrameWriter.write(channel, answer, inMemory)
    case _ =>
      def retained = {
        answer.body.retain() // which Spark's encoder releases
        answer
      }
      FrameWriter.encodeAndWrite(channel, retained)
  }
}

private object RequestedChunk {

  /** Milliseconds until a locked block is tried again. Spark takes longer to write it to disk. */
  private val RetryMillis = 5L

  /** Send of one part of the chunk. */
  private final case class PartSend(chunk: Chunk, done: Option[Long] => Unit, refused: () => Unit)
}
