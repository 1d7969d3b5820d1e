// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.util.concurrent.RejectedExecutionException
import java.util.concurrent.atomic.AtomicInteger

import io.netty.buffer.ByteBuf
import io.netty.channel.{Channel, ChannelFuture}
import io.netty.util.ReferenceCountUtil

import org.apache.spark.network.protocol.{StreamFailure, StreamResponse}

import sparkdl.comm.transport.{Chunk, ChunkAnswer, ChunkPeer}

/**
 * Chunk that a peer asked for over `channel`. Its block is open only while a part of it is being
 * sent. It is opened and released on the channel's event loop, whatever thread sends.
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
  // Used on the channel's event loop only.
  private var isRefused = false

  override def connection: Channel = channel

  override def send(
      offset: Int,
      length: Int
  )(done: Option[Long] => Unit, refused: () => Unit): Unit = {
    val part = Chunk(chunk.job, chunk.block, chunk.offset + offset, length)
    sending.incrementAndGet()
    try
      channel.eventLoop.execute(() => if (isRefused) end(refused()) else send(part, done, refused))
    catch { case _: RejectedExecutionException => end(done(None)) } // the network was closed
  }

  /** Send a part, on the channel's event loop. The peer confirms parts in this order. */
  private def send(part: Chunk, done: Option[Long] => Unit, refused: () => Unit): Unit =
    open(part) match {
      case Left(why) =>
        isRefused = true
        val isOpen = unconfirmed.add(_ => ())
        if (isOpen)
          FrameWriter.encodeAndWrite(channel, new StreamFailure(Wire.partId(number, 0), why))
        end(refused())
      case Right((answer, body)) =>
        def finish(): Unit = end(answer.body.release())
        if (unconfirmed.add(done))
          write(answer, body).addListener((_: io.netty.util.concurrent.Future[Void]) => finish())
        else {
          ReferenceCountUtil.release(body)
          finish()
          done(None)
        }
    }

  private def end(last: => Unit): Unit = {
    sending.decrementAndGet()
    last
  }

  /**
   * Open a part, and read it if it is on disk. If that fails, release the block and return the
   * reason for the peer.
   */
  private def open(part: Chunk): Either[String, (StreamResponse, AnyRef)] =
    try
      source.open(part).toRight(s"block ${chunk.block} is not here").map { bytes =>
        try {
          val answer =
            new StreamResponse(Wire.partId(number, part.length), part.length.toLong, bytes)
          answer -> bytes.convertToNetty()
        } catch {
          case e: Throwable =>
            bytes.release()
            throw e
        }
      }
    catch { case e: Throwable => Left(e.toString) }

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
