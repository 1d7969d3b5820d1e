// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bridge

import java.net.{StandardProtocolFamily, UnixDomainSocketAddress}
import java.nio.ByteBuffer
import java.nio.channels.{ClosedChannelException, ServerSocketChannel, SocketChannel}
import java.nio.file.{Files, Path, StandardOpenOption}
import java.nio.file.attribute.PosixFilePermissions
import java.security.{MessageDigest, SecureRandom}
import java.util.Base64
import java.util.concurrent.{ConcurrentHashMap, TimeUnit}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging

import sparkdl.comm.ps.PsNode
import sparkdl.comm.transport.ExecutorEnvironment

/**
 * Unix-domain socket through which Python workers reach their executor. The socket is in a
 * directory that only this user can enter. Its path and the token that a worker must send are in a
 * file that only this user can read. The file is in the executor's first block directory, which
 * Python workers find in SPARK_LOCAL_DIRS.
 */
private[comm] final class BridgeServer(node: PsNode, executor: ExecutorEnvironment)
    extends Logging {
  import BridgeServer._

  private val token = {
    val bytes = new Array[Byte](TokenBytes)
    new SecureRandom().nextBytes(bytes)
    bytes
  }
  private val connections = ConcurrentHashMap.newKeySet[SocketChannel]
  private val directory: Path =
    SocketDirectory.create(SocketDirectory.parent(System.getProperty("java.io.tmpdir")))
  private val socket: Path = directory.resolve(SocketDirectory.SocketName)
  private val listener: ServerSocketChannel = ServerSocketChannel.open(StandardProtocolFamily.UNIX)
  private val advertisement: Path = executor.localDirectory.toPath.resolve(AdvertisementName)

  listener.bind(UnixDomainSocketAddress.of(socket))
  advertise()
  startThread("sparkdl-bridge")(acceptAll())
  // The executor starts even if the sweep fails.
  startThread("sparkdl-bridge-sweep") {
    try SocketDirectory.sweep(directory)
    catch {
      case NonFatal(e) => logWarning(s"Sockets of killed executors could not be removed: $e")
    }
  }

  def close(): Unit = {
    listener.close()
    connections.asScala.foreach(_.close())
    Files.deleteIfExists(socket)
    Files.deleteIfExists(directory)
    Files.deleteIfExists(advertisement)
  }

  private def advertise(): Unit = {
    val message = Frames.newObject()
    message.put("socket", socket.toString)
    message.put("token", Base64.getEncoder.encodeToString(token))
    val body = Frames.encode(message)
    body.position(4)
    val options = Set(StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE).asJava
    val owner = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"))
    val file = Files.newByteChannel(advertisement, options, owner)
    try while (body.hasRemaining) file.write(body)
    finally file.close()
  }

  private def acceptAll(): Unit =
    while (listener.isOpen)
      try {
        val channel = listener.accept()
        startThread("sparkdl-bridge-worker")(serve(channel))
      } catch {
        case _: ClosedChannelException => ()
        case e: java.io.IOException =>
          // For example, out of file descriptors. An exception that ends a thread would end the
          // executor.
          logWarning(s"The bridge cannot accept a connection: $e")
          Thread.sleep(100)
      }

  private def serve(channel: SocketChannel): Unit = {
    connections.add(channel)
    try if (showsToken(channel)) new BridgeConnection(channel, node, executor.hadoopConf).run()
    catch { case NonFatal(e) => logWarning(s"A bridge connection ended: $e") }
    finally {
      connections.remove(channel)
      channel.close()
    }
  }

  /**
   * Return true if the peer sends the token in time. A peer that sends nothing must not keep a
   * thread forever, so its connection is then closed.
   */
  private def showsToken(channel: SocketChannel): Boolean = {
    val received = ByteBuffer.allocate(TokenBytes)
    val reading = startThread("sparkdl-bridge-token") {
      try Frames.fill(channel, received)
      catch { case _: java.io.IOException => () }
    }
    reading.join(TimeUnit.SECONDS.toMillis(TokenSeconds))
    !reading.isAlive && MessageDigest.isEqual(received.array, token)
  }

  private def startThread(name: String)(body: => Unit): Thread = {
    val thread = new Thread(() => body, name)
    thread.setDaemon(true)
    thread.start()
    thread
  }
}

private[comm] object BridgeServer {
  val AdvertisementName = "sparkdl-bridge.json"
  private val TokenBytes = 32
  private val TokenSeconds = 5L
}
