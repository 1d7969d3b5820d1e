// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.nio.ByteBuffer
import java.util.concurrent.{ConcurrentHashMap, LinkedBlockingQueue, TimeUnit}
import java.util.concurrent.atomic.AtomicInteger

import scala.jdk.CollectionConverters._

import org.apache.spark.network.buffer.{ManagedBuffer, NioManagedBuffer}
import org.apache.spark.network.client.TransportClientBootstrap
import org.apache.spark.network.crypto.{AuthClientBootstrap, AuthServerBootstrap}
import org.apache.spark.network.sasl.SecretKeyHolder
import org.apache.spark.network.server.TransportServerBootstrap
import org.apache.spark.network.util.{MapConfigProvider, TransportConf}

import sparkdl.comm.transport.{Chunk, ChunkAnswer, ChunkPeer, PeerMessageReceiver}

/**
 * Transport that serves blocks of memory, without Spark's environment.
 *
 * @param secret None: no authentication
 */
final class TestTransport(secret: Option[String] = None, settings: Map[String, String] = Map.empty)
    extends ChunkTransport {
  private val blocks = new ConcurrentHashMap[String, Chunk => ManagedBuffer]

  /** Number of chunks that were looked up. */
  val opened = new AtomicInteger

  def put(name: String, bytes: Array[Byte]): Unit = {
    val block = ByteBuffer.allocateDirect(bytes.length).put(bytes).flip()
    serve(name) { chunk =>
      if (chunk.offset + chunk.length > bytes.length)
        throw new IllegalArgumentException(s"$name has ${bytes.length} bytes")
      new NioManagedBuffer(block.slice(chunk.offset.toInt, chunk.length))
    }
  }

  def serve(name: String)(chunk: Chunk => ManagedBuffer): Unit = blocks.put(name, chunk)

  /** Names of locked blocks. */
  @volatile var locked = Set.empty[String]

  override def open(chunk: Chunk): Option[ManagedBuffer] = {
    opened.incrementAndGet()
    if (locked(chunk.block)) None else Option(blocks.get(chunk.block)).map(_(chunk))
  }

  override def has(chunk: Chunk): Boolean = blocks.containsKey(chunk.block)

  override val transportConf: TransportConf = {
    val threads = Seq("serverThreads", "clientThreads").map(key => s"spark.sparkdl.io.$key" -> "2")
    val all = threads.toMap + ("spark.sparkdl.io.mode" -> "NIO") ++ settings
    new TransportConf("sparkdl", new MapConfigProvider(all.asJava))
  }

  private val secrets = new SecretKeyHolder {
    override def getSaslUser(appId: String): String = "user"
    override def getSecretKey(appId: String): String = secret.get
  }

  override def serverBootstraps: Seq[TransportServerBootstrap] =
    secret.toSeq.map(_ => new AuthServerBootstrap(transportConf, secrets))
  override def clientBootstraps: Seq[TransportClientBootstrap] =
    secret.toSeq.map(_ => new AuthClientBootstrap(transportConf, "app", secrets))
  override def bindAddress: String = "127.0.0.1"
  override def onFreePort[T](first: Int, count: Int)(serve: Int => T): T = serve(first)
}

/**
 * Receiver that keeps all messages, and answers all requests.
 *
 * @param partBytes of each part of an answer; the last one is shorter
 * @param answering runs the sending of answers; by default at once
 */
final class RecordingReceiver(partBytes: Int = Int.MaxValue, answering: Runnable => Unit = _.run())
    extends PeerMessageReceiver {
  override def onRequest(answer: ChunkAnswer): Unit = answering(() => send(answer))

  private def send(answer: ChunkAnswer): Unit = {
    val offsets = Iterator.iterate(0L)(_ + partBytes).takeWhile(_ < answer.bytes).map(_.toInt)
    offsets.foreach(offset =>
      answer.send(offset, math.min(partBytes, answer.bytes - offset))(_ => (), () => ())
    )
  }

  val messages = new LinkedBlockingQueue[Seq[Byte]]
  val losses = new LinkedBlockingQueue[ChunkPeer]

  /** Exception that the next messages cause, if any. */
  @volatile var failure = Option.empty[Throwable]

  override def onMessage(message: ByteBuffer): Unit = {
    failure.foreach(throw _)
    val bytes = new Array[Byte](message.remaining)
    message.get(bytes)
    messages.put(bytes.toSeq)
  }
  override def onPeerLost(peer: ChunkPeer): Unit = losses.put(peer)

  def next[T](queue: LinkedBlockingQueue[T]): T =
    Option(queue.poll(20, TimeUnit.SECONDS)).getOrElse(throw new AssertionError("no event arrived"))
}
